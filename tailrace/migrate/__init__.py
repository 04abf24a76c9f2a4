"""`tailrace migrate`: reads the configuration of another server without executing it, and writes a tailrace.toml.

Imports `cli`, `foreign` and `process`.
"""
