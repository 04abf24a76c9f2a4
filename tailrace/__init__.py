"""Tailrace: a WSGI server that delivers every shape of response at the speed the operating system allows.

    tailrace mysite.wsgi                  # from the shell

    import tailrace
    tailrace.run(app, bind="127.0.0.1:8000")

    with tailrace.serve_in_thread(app) as url:    # in a test
        urllib.request.urlopen(url)

The command is `tailrace.command`, the options are `tailrace.cli.options`.
"""

from __future__ import annotations

import os
import sys

if os.path.basename(sys.argv[0]) == "tailrace" or (sys.argv[0] == "-m" and "tailrace" in sys.orig_argv):
    # Importing the command takes a third of a second. `command.main` restores KeyboardInterrupt.
    from tailrace.system import early

    early.protect()

from tailrace._tailrace import (
    ClientDisconnected,
    ClientDisconnectedError,
    RequestBodyError,
    RequestTimeout,
    __version__,
)
from tailrace.embed.run import run
from tailrace.embed.thread import serve_in_thread
from tailrace.errors import BindError, ConfigError, LoadError, TailraceError
from tailrace.logs.deliveries import on_delivery
from tailrace.logs.log import LogHandler

__all__ = [
    "BindError",
    "ClientDisconnected",
    "ClientDisconnectedError",
    "ConfigError",
    "LoadError",
    "LogHandler",
    "RequestBodyError",
    "RequestTimeout",
    "TailraceError",
    "__version__",
    "on_delivery",
    "run",
    "serve_in_thread",
]
