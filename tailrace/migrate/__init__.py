"""`tailrace migrate`: reads the configuration of another server, executes nothing, and writes a tailrace.toml.

Imports `cli`, `foreign` and `process`.
"""
