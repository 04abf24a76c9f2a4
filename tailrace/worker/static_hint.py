"""A hint for a Django project whose static files nobody serves, such as the style of its admin. Any attached thread.

The core asks `static_path` after the first response of the application with status 404, and `hint` once, for the first
such response below that path.
"""

from __future__ import annotations

import sys
from typing import Any, Final
from urllib.parse import urlsplit

# Modules that are loaded where the application serves static files: WhiteNoise, and the handler of `runserver`.
_SERVING: Final = ("whitenoise", "django.contrib.staticfiles.handlers")


def static_path() -> str | None:
    """The path of STATIC_URL with its slash; None: no Django project is loaded, or something serves the files."""
    settings = _settings()
    if settings is None or any(module in sys.modules for module in _SERVING):
        return None
    url = urlsplit(settings.STATIC_URL or "")
    # Files at another host are served there. Below "/", everything would be a static file.
    return None if url.netloc or not url.path.strip("/") else f"/{url.path.strip('/')}/"


def hint(path: str) -> str | None:
    """What to do about a 404 at this path; None: a view of the project has answered it."""
    from django.urls import Resolver404, get_script_prefix, resolve

    settings = _settings()
    try:
        # The resolver knows the paths below the prefix (--root-path).
        resolve("/" + path.removeprefix(get_script_prefix()).lstrip("/"))
    except Resolver404:
        pass
    else:
        return None
    prefix = (static_path() or "/").rstrip("/")
    root = settings.STATIC_ROOT
    first = "Run" if root else "Set STATIC_ROOT, run"
    return (
        "404 from Django, which serves no static files in production. "
        f"{first} `python manage.py collectstatic`, and start Tailrace with "
        f"`--static {prefix}={root or './staticfiles'}`. This is logged once per process."
    )


def _settings() -> Any:
    """The project's settings, if they are loaded."""
    module = sys.modules.get("django.conf")
    return module.settings if module is not None and module.settings.configured else None
