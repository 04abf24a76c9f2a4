"""Tailrace: a WSGI server that delivers every shape of response at the speed the operating system allows.

    tailrace mysite.wsgi                  # from the shell

    import tailrace
    tailrace.run(app, bind="127.0.0.1:8000")

    with tailrace.serve_in_thread(app) as server:    # in a test
        urllib.request.urlopen(server.url)

The command is `tailrace.command`, the options are `tailrace.cli.options`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

# A process that `multiprocessing` has spawned has the arguments of its parent, but was not started with them.
if (os.path.basename(sys.argv[0]) == "tailrace" and sys.argv[0] in sys.orig_argv) or (
    sys.argv[0] == "-m" and ("-m", "tailrace") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
):
    # Importing the command takes a tenth of a second. `command.main` restores KeyboardInterrupt.
    from tailrace.system import early

    early.protect()

from tailrace._tailrace import (
    ClientDisconnected,
    ClientDisconnectedError,
    RequestBodyError,
    RequestTimeout,
    __version__,
)
from tailrace.errors import BindError, ConfigError, LoadError, PublishError, TailraceError

if TYPE_CHECKING:
    from tailrace.embed.run import run
    from tailrace.embed.server import Server
    from tailrace.embed.thread import serve_in_thread
    from tailrace.logs.deliveries import on_delivery
    from tailrace.logs.log import LogHandler
    from tailrace.publishing import hold, publish
    from tailrace.worker.hooks import WorkerInfo

__all__ = [
    "BindError",
    "ClientDisconnected",
    "ClientDisconnectedError",
    "ConfigError",
    "LoadError",
    "LogHandler",
    "PublishError",
    "RequestBodyError",
    "RequestTimeout",
    "Server",
    "TailraceError",
    "WorkerInfo",
    "__version__",
    "hold",
    "on_delivery",
    "publish",
    "run",
    "serve_in_thread",
]

# Imported when they are used: an application that only names an exception does not load a server.
_MODULES: Final = {
    "LogHandler": "tailrace.logs.log",
    "Server": "tailrace.embed.server",
    "WorkerInfo": "tailrace.worker.hooks",
    "hold": "tailrace.publishing",
    "on_delivery": "tailrace.logs.deliveries",
    "publish": "tailrace.publishing",
    "run": "tailrace.embed.run",
    "serve_in_thread": "tailrace.embed.thread",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
