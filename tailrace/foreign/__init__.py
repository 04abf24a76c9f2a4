"""What other servers call the options of Tailrace: one table, for error messages, `tailrace migrate` and its page.

Imports no other folder.
"""
