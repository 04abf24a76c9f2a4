"""Requests in greenlets: what `--gevent` and `penstock.gevent` add to the Python side.

`hub` carries the requests, `monitor` notices when nothing moves, `stacks` and `dump` show where greenlets are, `patch`
is for the worker of a master, `embedded` for a program that runs its own hub. `patch` alone can be imported without
gevent; none of them is, unless greenlets are asked for.
"""
