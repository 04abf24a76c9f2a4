"""Starts the servers that have no command line, or none that says all, as their documentation starts them.

python -m served.serve bjoern served.shapes:pong 127.0.0.1:8000
python -m served.serve gevent served.shapes:pong unix:/tmp/app.sock
python -m served.serve gevent served.shapes:pong 127.0.0.1:8000 --backlog 4096
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from importlib import import_module
from typing import Any


def load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    found = import_module(module)
    for each in attribute.split("."):
        found = getattr(found, each)
    return found


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def bjoern(asked: argparse.Namespace) -> None:
    server = import_module("bjoern")
    application = load(asked.application)
    if asked.address.startswith("unix:"):
        server.run(application, asked.address)
        return
    host, port = host_and_port(asked.address)
    shared = {"reuse_port": asked.workers > 1}
    for _ in range(asked.workers - 1):
        # Forked, as in its README.
        process = multiprocessing.get_context("fork").Process
        process(target=server.run, args=(application, host, port), kwargs=shared, daemon=True).start()
    server.run(application, host, port, **shared)


def fastwsgi(asked: argparse.Namespace) -> None:
    host, port = host_and_port(asked.address)
    import_module("fastwsgi").run(wsgi_app=load(asked.application), host=host, port=port, workers=asked.workers)


def gevent(asked: argparse.Namespace) -> None:
    # Before anything else is imported, says gevent's guide.
    import_module("gevent.monkey").patch_all()
    pywsgi = import_module("gevent.pywsgi")
    application = load(asked.application)
    if asked.address.startswith("unix:"):
        socket = import_module("gevent.socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(asked.address.removeprefix("unix:"))
        listener.listen(asked.backlog or pywsgi.WSGIServer.backlog)
        server = pywsgi.WSGIServer(listener, application, log=None)
    else:
        server = pywsgi.WSGIServer(host_and_port(asked.address), application, asked.backlog, log=None)
    server.serve_forever()


def paste(asked: argparse.Namespace) -> None:
    host, port = host_and_port(asked.address)
    options = {"threadpool_workers": asked.threads, "request_queue_size": asked.backlog}
    given = {name: value for name, value in options.items() if value is not None}
    import_module("paste.httpserver").serve(load(asked.application), host=host, port=str(port), **given)


def pyruvate(asked: argparse.Namespace) -> None:
    given = {} if asked.reuse is None else {"max_reuse_count": asked.reuse}
    address = asked.address.removeprefix("unix:")
    import_module("pyruvate").serve(load(asked.application), address, asked.threads, **given)


def wsgiref(asked: argparse.Namespace) -> None:
    simple = import_module("wsgiref.simple_server")

    class Quiet(simple.WSGIRequestHandler):  # type: ignore[misc, name-defined]
        """Logs no requests."""

        def log_message(self, *_: object) -> None:
            """Nothing."""

    host, port = host_and_port(asked.address)
    simple.make_server(host, port, load(asked.application), handler_class=Quiet).serve_forever()


SERVERS: dict[str, Callable[[argparse.Namespace], None]] = {
    each.__name__: each for each in (bjoern, fastwsgi, gevent, paste, pyruvate, wsgiref)
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m served.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("server", choices=list(SERVERS))
    parser.add_argument("application", help="as module:name")
    parser.add_argument("address", help="as host:port or unix:path")
    parser.add_argument("--backlog", type=int, help="connections that may wait to be accepted (gevent, paste)")
    parser.add_argument("--threads", type=int, help="threads that run the application (paste, pyruvate)")
    parser.add_argument("--reuse", type=int, help="requests on one connection (pyruvate)")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the port (bjoern, fastwsgi)")
    asked = parser.parse_args()
    SERVERS[asked.server](asked)


if __name__ == "__main__":
    main()
