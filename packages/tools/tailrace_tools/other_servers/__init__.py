"""The names of Tailrace's options in other servers: one table for error messages, `tailrace migrate` and its page.

Imports no other folder.
"""
