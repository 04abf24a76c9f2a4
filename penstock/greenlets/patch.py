"""Whether `--gevent` can be had, and the monkey-patching of a worker.

The master asks `check` and imports nothing of gevent: it stays as it is, so that it can fork. A worker calls `apply`
before its application, and what the hook `post_fork` imports.

Thread: the main one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import warnings
from typing import Final

from penstock import log
from penstock.errors import ConfigError
from penstock.settings import DEFAULT, Settings

_REMEDY: Final = "pip install 'penstock[gevent]'"
# Modules that keep what they take from the standard library when they are imported.
_SUSPECTS: Final = ("ssl", "urllib3", "requests", "psycopg2", "pymysql", "redis", "pymongo")


def check(settings: Settings) -> None:
    """Raises ConfigError where these settings and greenlets cannot go together; warns of what has no effect."""
    if settings["debug"].value:
        raise ConfigError("--debug runs one request at a time on the main thread, --gevent thousands: leave one out")
    if settings["preload"].value:
        raise ConfigError(
            "--preload loads the application in the master, which must stay unpatched, and --gevent patches each "
            "worker before it loads the application: leave one out"
        )
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise ConfigError("--gevent needs a Python with a global interpreter lock; this one is free-threaded")
    if "gevent" not in sys.modules:
        found = importlib.util.find_spec("gevent")
        if found is None:
            raise ConfigError(f"--gevent needs gevent, which is not installed; `{_REMEDY}`")
        if found.submodule_search_locations is None:
            raise ConfigError(f"--gevent needs gevent, which {found.origin} hides: start elsewhere, or rename it")
    if settings["threads"].source != DEFAULT:
        log.logger.warning("--threads has no effect with --gevent, where --max-greenlets limits the requests at once")


def apply() -> None:
    """Patches the standard library. Raises ConfigError."""
    early = [name for name in _SUSPECTS if name in sys.modules]
    try:
        monkey = importlib.import_module("gevent.monkey")
    except ImportError as error:
        raise ConfigError(f"--gevent needs gevent, which cannot be imported: {error}; `{_REMEDY}`") from None
    if early:
        log.logger.warning(
            "--gevent: imported before the standard library is patched, so perhaps not cooperative: %s (the module of "
            "--hooks imports them, or sitecustomize)",
            ", ".join(early),
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", monkey.MonkeyPatchWarning)
        monkey.patch_all()
    for each in caught:
        log.logger.warning("--gevent: %s", each.message)
