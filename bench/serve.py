"""Starts the servers that have no command line, as their documentation starts them.

python -m bench.serve bjoern bench.apps:pong 127.0.0.1:8000
python -m bench.serve gevent bench.apps:pong unix:/tmp/app.sock
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def bjoern(application: str, address: str) -> None:
    server = import_module("bjoern")
    if address.startswith("unix:"):
        server.run(load(application), address)
    else:
        host, _, port = address.rpartition(":")
        server.run(load(application), host, int(port))


def gevent(application: str, address: str) -> None:
    # Before anything else is imported, says gevent's guide.
    import_module("gevent.monkey").patch_all()
    pywsgi = import_module("gevent.pywsgi")
    listener: Any
    if address.startswith("unix:"):
        socket = import_module("gevent.socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address.removeprefix("unix:"))
        listener.listen(pywsgi.WSGIServer.backlog)
    else:
        host, _, port = address.rpartition(":")
        listener = (host, int(port))
    pywsgi.WSGIServer(listener, load(application), log=None).serve_forever()


if __name__ == "__main__":
    {"bjoern": bjoern, "gevent": gevent}[sys.argv[1]](sys.argv[2], sys.argv[3])
