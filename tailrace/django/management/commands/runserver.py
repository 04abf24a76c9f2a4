"""`manage.py runserver`: Django's command, with Tailrace as its server.

Thread: the main one, or the one that the autoreloader starts. Records are logged on a thread of the core.
"""

from __future__ import annotations

from socketserver import ThreadingMixIn
from typing import Any

from django.apps import apps
from django.core.servers.basehttp import WSGIRequestHandler, WSGIServer

from tailrace.embed.run import run
from tailrace.logs.deliveries import on_delivery

if apps.is_installed("django.contrib.staticfiles"):
    from django.contrib.staticfiles.management.commands.runserver import Command as DjangoCommand
else:
    from django.core.management.commands.runserver import Command as DjangoCommand


class _Logged(WSGIRequestHandler):
    """Logs a response as Django's server does, with the logger `django.server`."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.request = None
        self.requestline = f"{record['method']} {record['target']} HTTP/1.1"
        # Tailrace itself logs connections without a request, and requests without a response.
        if record["method"] and record["status"]:
            self.log_request(record["status"], record["bytes"])


class _Server(WSGIServer):
    """Binds and fails as Django's server does; Tailrace serves on its socket."""

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Serves until SIGINT or SIGTERM; on the autoreloader's thread, until the process ends."""
        on_delivery(_Logged)
        run(
            self.get_app(),
            bind=f"fd://{self.fileno()}",
            # Django's server starts a thread for each connection: a page may hold many event streams open.
            threads=1000 if isinstance(self, ThreadingMixIn) else 1,
            # A restart does not wait for requests, as with Django's server.
            graceful_timeout=0,
            # Django has already printed the address.
            log_level="warning",
        )


class Command(DjangoCommand):
    """Django's `runserver`, or the one of django.contrib.staticfiles if that is installed."""

    help = "Starts Tailrace as a development server, with the options of Django's runserver."
    server_cls = _Server
