"""A process that serves: a master's worker (`main`), or a server without a master (`single`).

Imports `process`, `cli` and `greenlets`.
"""
