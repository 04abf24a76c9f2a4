"""The process that binds the sockets, forks workers and watches them. It serves no request.

Imports `process`, `cli`, `greenlets` and `worker`.
"""
