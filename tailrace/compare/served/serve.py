"""Starts the servers that have no command line, as their documentation starts them.

python -m served.serve bjoern served.shapes:pong 127.0.0.1:8000
python -m served.serve gevent served.shapes:pong unix:/tmp/app.sock
python -m served.serve gevent served.shapes:pong 127.0.0.1:8000 --backlog 4096
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any


def load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def bjoern(application: str, address: str, backlog: int | None) -> None:
    server = import_module("bjoern")
    if address.startswith("unix:"):
        server.run(load(application), address)
    else:
        host, _, port = address.rpartition(":")
        server.run(load(application), host, int(port))


def gevent(application: str, address: str, backlog: int | None) -> None:
    # Before anything else is imported, says gevent's guide.
    import_module("gevent.monkey").patch_all()
    pywsgi = import_module("gevent.pywsgi")
    if address.startswith("unix:"):
        socket = import_module("gevent.socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address.removeprefix("unix:"))
        listener.listen(backlog or pywsgi.WSGIServer.backlog)
        server = pywsgi.WSGIServer(listener, load(application), log=None)
    else:
        host, _, port = address.rpartition(":")
        server = pywsgi.WSGIServer((host, int(port)), load(application), backlog, log=None)
    server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m served.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("server", choices=["bjoern", "gevent"])
    parser.add_argument("application", help="as module:name")
    parser.add_argument("address", help="as host:port or unix:path")
    parser.add_argument("--backlog", type=int, help="connections that may wait to be accepted (gevent only)")
    asked = parser.parse_args()
    {"bjoern": bjoern, "gevent": gevent}[asked.server](asked.application, asked.address, asked.backlog)


if __name__ == "__main__":
    main()
