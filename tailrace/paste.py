"""The runner of `pserve` and other PasteDeploy tools: a section with `use = egg:tailrace`.

    [server:main]
    use = egg:tailrace
    listen = 127.0.0.1:6543 [::1]:6543
    threads = 32

Keys are the options of docs/options.md, or `host` and `port`, or `listen` as another name of `bind`. The log level
is `log_level`, else the level that the file sets for the logger `tailrace`, else info.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailrace.embed.run import run
from tailrace.errors import ConfigError
from tailrace.logs import log

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


def serve(app: WSGIApplication, global_conf: Mapping[str, str] | None = None, **local_conf: str) -> None:
    """Serves `app` with the settings of the ini section until SIGINT or SIGTERM. Raises ConfigError and BindError.

    global_conf: `[DEFAULT]` of the file, which belongs to the application: not read.
    """
    given = keywords(local_conf)
    if log.logger.level == logging.NOTSET and "log_config" not in given:
        # If the file does not configure logging, `pserve` shows only warnings, and nothing would name the address.
        given.setdefault("log_level", "info")
    run(app, **given)


def keywords(section: Mapping[str, str]) -> dict[str, Any]:
    """The options that an ini section states. Raises ConfigError for two ways of naming the address."""
    given = {key.replace("-", "_"): text for key, text in section.items()}
    host, port, listen = given.pop("host", None), given.pop("port", None), given.pop("listen", None)
    ways = [
        way for way, present in (("bind", "bind" in given), ("listen", listen), ("host/port", host or port)) if present
    ]
    if len(ways) > 1:
        raise ConfigError(f"{' and '.join(ways)} both say where to listen; remove one")
    if listen:
        given["bind"] = listen
    elif host or port:
        host = host or "127.0.0.1"
        given["bind"] = (
            f"[{host}]:{port or 8000}" if ":" in host and not host.startswith("[") else f"{host}:{port or 8000}"
        )
    return given
