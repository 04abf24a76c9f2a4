"""Penstock: a WSGI server that delivers every shape of response at the speed the operating system allows.

    penstock mysite.wsgi                  # from the shell

    import penstock
    penstock.run(app, bind="127.0.0.1:8000")

    with penstock.serve_in_thread(app) as url:    # in a test
        urllib.request.urlopen(url)

The command line is `penstock.cli`, the options are `penstock.options`.
"""

from __future__ import annotations

from penstock._penstock import ClientDisconnected, RequestBodyError, RequestTimeout, __version__
from penstock.embed import run, serve_in_thread
from penstock.errors import BindError, ConfigError, LoadError, PenstockError

__all__ = [
    "BindError",
    "ClientDisconnected",
    "ConfigError",
    "LoadError",
    "PenstockError",
    "RequestBodyError",
    "RequestTimeout",
    "__version__",
    "run",
    "serve_in_thread",
]
