"""The back end for django-prodserver, which starts what the setting PRODUCTION_PROCESSES lists.

    PRODUCTION_PROCESSES = {
        "web": {"BACKEND": "tailrace.django.prodserver.TailraceServer", "ARGS": {"bind": ":8000", "workers": "4"}},
    }

`manage.py server web` then starts Tailrace.
"""

from __future__ import annotations

from django_prodserver.backends.base import BaseServerBackend

from tailrace.django.serve import serve


class TailraceServer(BaseServerBackend):
    """Serves the project's WSGI_APPLICATION. ARGS: options of `tailrace serve`, without the dashes in front."""

    def start_server(self, *args: str) -> None:
        """Replaces this process with the server."""
        serve(args)
