"""Requests in greenlets: what `--gevent` and `tailrace.gevent` add to the Python side. Imports `process`.

`hub` runs the requests, `monitor` notices when the hub does not answer, `stacks` and `dump` show where greenlets are,
`patch` patches the standard library in a worker. `patch` can be imported without gevent; the others are imported only
where greenlets are asked for.
"""
