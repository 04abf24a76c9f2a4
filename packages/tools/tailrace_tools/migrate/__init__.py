"""`tailrace migrate`: reads the configuration of another server without executing it, and writes a tailrace.toml.

Imports `cli`, `other_servers` and `process`.
"""
