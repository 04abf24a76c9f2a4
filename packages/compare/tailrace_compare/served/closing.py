"""For servers that do not call the iterable's `close()`, which PEP 3333 demands.

Django ends a request there: it sends `request_finished` and gives back its connections to databases. A server that does
not call it spares that time, and the application leaks. So that all servers do the same work, the application that such
a server gets calls it by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


def closing(application: WSGIApplication) -> WSGIApplication:
    """The application with its iterable read and closed."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        result = application(environ, start_response)
        try:
            return list(result)
        finally:
            if close := getattr(result, "close", None):
                close()

    return app
