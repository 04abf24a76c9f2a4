"""The production server of a Django project, for `manage.py tailrace` and django-prodserver.

Thread: the main one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import NoReturn

from django.conf import settings

# `-m` would put the current directory in front of the project's, and PYTHONPATH would put the rest in front of the
# standard library.
_START = "import sys; sys.path[:] = eval(sys.argv.pop(1)); from tailrace.command import main; main()"


def serve(options: Iterable[str]) -> NoReturn:
    """Replaces this process with `tailrace serve`, these options and the project's WSGI_APPLICATION.

    A new program is needed because the management command has already imported the project: workers forked from this
    process would keep the old code after a reload.
    """
    module, _, name = (settings.WSGI_APPLICATION or "").rpartition(".")
    application = f"{module}:{name}" if module else "django.core.wsgi:get_wsgi_application()"
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *flags, "-c", _START, repr(path()), "serve", application, *options])


def path() -> list[str]:
    """`sys.path` of this process. The current directory comes last, so that `tailrace` does not put it first."""
    found = [os.path.abspath(each) for each in sys.path]
    # Python has resolved the links in the directory of manage.py. If a deploy switches one of them, a reload is to load
    # the new code.
    script = os.path.dirname(os.path.abspath(sys.argv[0]))
    found = [script if each == os.path.realpath(script) else each for each in found]
    here = os.getcwd()
    return found if here in found else [*found, here]
