"""Shared by the tests: real servers, a strict client, the table of cases, and optional tools."""
