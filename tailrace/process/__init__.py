"""What every process of a server needs: errors, log, descriptors, addresses, sockets, signals, user, title, its end.

Imports no other folder.
"""
