"""What the tests share: real servers, a strict client, the table of cases, and the tools they may need."""
