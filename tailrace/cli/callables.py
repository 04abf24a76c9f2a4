"""What an object is, and how it can be called: for checks of applications, factories and hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def is_asgi(candidate: object) -> bool:
    """Whether it is an ASGI application: a coroutine function, or a callable of (scope, receive, send)."""
    call = type(candidate).__call__ if callable(candidate) else None
    if any(map(inspect.iscoroutinefunction, (candidate, call))):
        return True
    parameters = _parameters(candidate)
    return parameters is not None and [name for name in parameters if name != "self"][:3] == [
        "scope",
        "receive",
        "send",
    ]


def _parameters(candidate: object) -> list[str] | None:
    try:
        return list(inspect.signature(candidate, follow_wrapped=False).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def accepts(candidate: Callable[..., Any], count: int, keywords: dict[str, Any] | None = None) -> bool | None:
    """Whether the callable takes `count` positional arguments; None when it has no signature.

    Of a decorated function the signature of the wrapper counts: a decorator may turn `def view(request)` into an
    application.
    """
    if hasattr(candidate, "__signature__"):
        return None
    try:
        signature = inspect.signature(candidate, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*(None,) * count, **(keywords or {}))
    except TypeError:
        return False
    return True


def described(candidate: object) -> str:
    """What it is, for a message: `the class Site`, `the function app`, `a Flask`."""
    name = getattr(candidate, "__qualname__", None)
    if inspect.isclass(candidate):
        return f"the class {name}"
    return f"the function {name}" if inspect.isroutine(candidate) else kind_of(candidate)


def kind_of(value: object) -> str:
    """Its type with an article: `a str`, `an int`; None is itself."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"
