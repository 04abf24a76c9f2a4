"""The production server of a Django project, for `manage.py tailrace` and django-prodserver.

Thread: the main one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import NoReturn

from django.conf import settings


def serve(options: Iterable[str]) -> NoReturn:
    """Replaces this process with `tailrace serve`, these options and the project's WSGI_APPLICATION.

    A new program is needed because the management command has already imported the project: workers forked from this
    process would keep the old code after a reload.
    """
    module, _, name = (settings.WSGI_APPLICATION or "").rpartition(".")
    application = f"{module}:{name}" if module else "django.core.wsgi:get_wsgi_application()"
    # What precedes the standard library: the directory of manage.py, --pythonpath, and PYTHONPATH.
    ahead = sys.path[: sys.path.index(os.path.dirname(os.__file__))]
    # Python has resolved the links in it. If a deploy switches one of them, a reload is to load the new code.
    script = os.path.dirname(os.path.abspath(sys.argv[0]))
    ahead = [script if each == os.path.realpath(script) else each for each in ahead]
    os.environ["PYTHONPATH"] = os.pathsep.join(ahead)
    os.execv(sys.executable, [sys.executable, "-m", "tailrace", "serve", application, *options])
