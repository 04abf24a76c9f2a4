"""`tailrace migrate`: reads the configuration of another server without executing it, and writes a tailrace.toml; or
finds in a project what starts another server (`project`, `rewrite`).

Imports `cli`, `other_servers` and `process`.
"""
