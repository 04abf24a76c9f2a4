"""The status process: it answers how the server is, from memory that it shares with the master and the workers.

Imports the folders that `worker` imports, and `worker`, whose core serves it; not the master.
"""
