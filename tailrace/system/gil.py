"""Free-threaded Python (PEP 703): whether the GIL is off, and which import has turned it on."""

from __future__ import annotations

import contextlib
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from typing import Any, Final

from tailrace.logs import log

IS_FREE_THREADED: Final = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
# CPython's RuntimeWarning when an extension module without `Py_mod_gil` is imported.
_TURNED_ON: Final = re.compile(r"\(GIL\) has been enabled to load module '([^']+)'")


def is_off() -> bool:
    """Whether threads of this process run Python code at the same time."""
    # Python 3.13 or newer.
    return IS_FREE_THREADED and not getattr(sys, "_is_gil_enabled")()  # noqa: B009


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """A context for imports, at a start: warns if one of them turns the GIL on, and says which. The interpreter's own
    warning is shown as before."""
    if not is_off():
        yield
        return
    shown = warnings.showwarning
    modules: list[str] = []

    def show(message: Warning | str, *arguments: Any, **keywords: Any) -> None:
        modules.extend(_TURNED_ON.findall(str(message)))
        shown(message, *arguments, **keywords)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:
            warnings.showwarning = shown
        if not is_off():
            log.logger.warning(
                "the GIL is on again: %s does not support free-threaded Python; use a version that does, or set "
                "PYTHON_GIL=0 to import it at your own risk",
                modules[0] if modules else "an imported module",
            )
