"""What the operator asks for: options, their values, where each came from, and which application is meant.

Imports `process`. The `tailrace` command, which imports everything, is `tailrace.command`.
"""
