"""Commands that look at a running server: `tailrace top`, `threads` and `trace`."""
