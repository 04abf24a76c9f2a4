"""Checks whether `--gevent` is possible, and patches the standard library in a worker.

The master calls `check`, which imports nothing of gevent: the master must stay unpatched, so that it can fork. A worker
calls `apply` before it calls the hook `post_fork` and loads the application.

Thread: the main one.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from typing import Any, Final

from tailrace.errors import ConfigError
from tailrace.logs import log
from tailrace.system import gil

_REMEDY: Final = "pip install 'tailrace[gevent]'"
# Modules that keep functions of the standard library from when they are imported: patching comes too late for them.
_SUSPECTS: Final = ("ssl", "urllib3", "requests", "psycopg2", "pymysql", "redis", "pymongo", "ddtrace")


def check() -> None:
    """Raises ConfigError where greenlets are not possible."""
    if gil.IS_FREE_THREADED:
        raise ConfigError("--gevent needs a Python with a global interpreter lock; this one is free-threaded")
    if "gevent" not in sys.modules:
        found = importlib.util.find_spec("gevent")
        if found is None:
            raise ConfigError(f"--gevent needs gevent, which is not installed; `{_REMEDY}`")
        if found.submodule_search_locations is None:
            raise ConfigError(
                f"--gevent needs gevent, but {found.origin} is imported instead; rename that file, or start in another "
                "directory"
            )


def apply() -> None:
    """Patches the standard library. Raises ConfigError."""
    early = [name for name in _SUSPECTS if name in sys.modules]
    try:
        monkey = importlib.import_module("gevent.monkey")
    except ImportError as error:
        raise ConfigError(f"--gevent needs gevent, which cannot be imported: {error}; `{_REMEDY}`") from None
    # The loop is checked first, since patching makes it; the other settings last, since they may import modules that
    # are to be patched.
    settings = importlib.import_module("gevent._config").config.settings
    _check_variables(settings["loop"])
    if early:
        log.logger.warning(
            "--gevent: %s imported before the standard library is patched, so calls to them may block the hub; make "
            "the module of --hooks, or sitecustomize, import them later",
            f"{', '.join(early)} {'was' if len(early) == 1 else 'were'}",
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", monkey.MonkeyPatchWarning)
        monkey.patch_all()
    for each in caught:
        log.logger.warning("--gevent: %s", each.message)
    _check_variables(*settings.values())


def _check_variables(*settings: Any) -> None:
    """Raises ConfigError for a variable of gevent's with a value that gevent does not understand.

    gevent itself would raise later, in some cases only during a request.
    """
    for setting in settings:
        text = os.environ.get(setting.environment_key)
        if text is None:
            continue
        try:
            setting.get()
        except Exception as error:  # ImportError, ValueError, or anything that the named class raises
            known = ", ".join(getattr(setting, "shortname_map", ()))
            remedy = f"choose from {known}, or write module.class" if known else " ".join(str(error).split())
            raise ConfigError(f"{setting.environment_key} = {text!r}: {remedy}") from None
