"""What was most likely meant when no application was found: the second halves of error messages."""

from __future__ import annotations

import difflib
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tailrace.cli.callables import accepts, is_asgi
from tailrace.errors import LoadError

_FACTORY_NAMES: Final = (
    "create_app",
    "make_app",
    "get_app",
    "build_app",
    "app_factory",
    "create_application",
    "get_wsgi_application",
)


def module_not_found(missing: str) -> LoadError:
    """The error for a module that Python does not find. missing: what Python looked for."""
    head = f"no module named {missing!r}"
    if "." in missing and (parent := sys.modules.get(missing.rpartition(".")[0])) is not None:
        attribute = missing.rpartition(".")[2]
        if hasattr(parent, attribute):
            return LoadError(
                f"{head}, but {parent.__name__} has {attribute!r}; did you mean {parent.__name__}:{attribute}?"
            )
        if not hasattr(parent, "__path__"):
            return LoadError(
                f"{head}: {parent.__name__} is a module, not a package{nearest(attribute, public_names(parent))}"
            )
        known = [f"{parent.__name__}.{module.name}" for module in pkgutil.iter_modules(parent.__path__)]
        return LoadError(f"{head}{_unreadable(parent.__path__) or nearest(missing, known)}")
    here = Path.cwd()
    if said := _unreadable([str(here)]):
        return LoadError(f"{head}{said}")
    nested = next(
        (path for path in sorted(here.glob(f"*/{missing}*")) if path.name in (missing, f"{missing}.py")), None
    )
    if nested is not None:
        return LoadError(f"{head} in {here}, but {nested.relative_to(here)} exists; add --chdir {nested.parent.name}")
    known = [module.name for module in pkgutil.iter_modules([str(here)])]
    hint = (
        nearest(missing, known)
        or "; start in the directory that contains it, name that directory with --chdir, or install its package"
    )
    return LoadError(f"{head} in {here}, nor installed for {sys.executable}{hint}")


def _unreadable(directories: Iterable[str]) -> str:
    """The end of a message about a missing module: a directory that this user is not allowed to read."""
    hidden = [place for place in directories if os.path.isdir(place) and not os.access(place, os.R_OK | os.X_OK)]
    return f"; the directory {hidden[0]} cannot be read: Permission denied" if hidden else ""


def of(module: ModuleType, written: str, wanted: str = "") -> str:
    """The end of a message: what in the module looks like an application.

    written: how the operator names the module. wanted: the name in it that was not found.
    """
    if getattr(module, "__file__", None) is None and hasattr(module, "__path__"):
        # A directory without __init__.py, which Python takes for a package (PEP 420).
        inside = ", ".join(f"{written}.{each.name}" for each in pkgutil.iter_modules(module.__path__))
        return (
            _unreadable(module.__path__) or f"; it is a directory without __init__.py; modules in it: {inside or '-'}"
        )
    names = list(public_names(module))
    applications = [name for name in names if _looks_like_application(module, name)]
    factories = [f"{name}()" for name in names if name in _FACTORY_NAMES and accepts(getattr(module, name), 0)]
    found = [*applications, *factories]
    if found:
        return "; these could be the application: " + ", ".join(f"{written}:{name}" for name in found[:5])
    if not wanted and any(each.name == "wsgi" for each in pkgutil.iter_modules(getattr(module, "__path__", ()))):
        return f"; did you mean {written}.wsgi?"
    return nearest(wanted, names) or "; name the callable after a colon, as in module:callable"


def _looks_like_application(module: ModuleType, name: str) -> bool:
    try:
        return _is_like_application(module, getattr(module, name))
    except Exception:  # proxies such as Flask's `request` may raise any exception when their attributes are read
        return False


def _is_like_application(module: ModuleType, value: Any) -> bool:
    if inspect.isclass(value) or inspect.ismodule(value) or not callable(value) or is_asgi(value):
        return False
    called = value if inspect.isroutine(value) else type(value).__call__
    try:
        parameters = [each for each in inspect.signature(called).parameters.values() if each.default is each.empty]
    except (TypeError, ValueError):
        return False
    names = [
        each.name
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.name != "self"
    ]
    # A function with two parameters that comes from another module is most likely a helper (`partial`, `path`, ...).
    return len(names) == 2 and (names[-1].startswith("start") or getattr(value, "__module__", None) == module.__name__)


def public_names(owner: object) -> Iterator[str]:
    """Names of attributes without a leading underscore."""
    return (name for name in dir(owner) if not name.startswith("_"))


def file_names(directory: Path) -> list[str]:
    """Files of a directory that may hold an application; none where it cannot be read."""
    try:
        return [name for name in os.listdir(directory) if name.endswith((".py", ".wsgi"))]
    except OSError:
        return []


def nearest(name: str, known: object) -> str:
    """The end of a message: the most similar of the known names."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)  # type: ignore[call-overload]
    return f"; did you mean {found[0]}?" if found else ""
