"""Names of what the application is made of: classes, functions and where their code stands."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

_OWN: Final = os.path.dirname(__file__)


def of_code(code: CodeType) -> str:
    """`file:line`, from the current directory where the file is below it."""
    return _shown(code.co_filename, code.co_firstlineno)


def of_error(error: BaseException) -> str:
    """`file:line` of the last frame that is not of this package; empty: there is none."""
    place = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_own(code):
            place = _shown(code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return place


def of_caller(frame: FrameType) -> str:
    """`file:line` where a frame is."""
    return _shown(frame.f_code.co_filename, frame.f_lineno)


def is_own(code: CodeType) -> bool:
    """Whether this is code of the doctor."""
    return code.co_filename.startswith(_OWN)


def caller(frame: FrameType | None) -> tuple[str, str]:
    """Name and place of the function of a frame; empty: code of the doctor, which stands for the server."""
    if frame is None or is_own(frame.f_code):
        return "", ""
    return of_function(frame), of_code(frame.f_code)


def of_function(frame: FrameType) -> str:
    """`module.Class` of a method, else `module.function`."""
    code = frame.f_code
    module = frame.f_globals.get("__name__", "")
    if code.co_argcount and code.co_varnames[0] == "self" and (owner := frame.f_locals.get("self")) is not None:
        return of_type(type(owner))
    name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    return f"{module}.{name}" if module else name


def of_type(kind: type[Any]) -> str:
    """`module.Class`; a built-in type by its name alone."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def of_object(made: object) -> tuple[str, str]:
    """Name and place of what was returned: of a generator those of its function, of anything else of its class."""
    code = getattr(made, "gi_code", None)
    if isinstance(code, CodeType):
        frame = getattr(made, "gi_frame", None)
        module = frame.f_globals.get("__name__", "") if frame is not None else ""
        name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
        return (f"{module}.{name}" if module else name), of_code(code)
    return of_type(type(made)), ""


def is_library(code: CodeType) -> bool:
    """Whether this is installed code, and none of the project's."""
    file = code.co_filename
    return file.startswith("<") or any(file.startswith(folder + os.sep) for folder in _libraries())


@functools.cache
def _libraries() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _shown(file: str, line: int) -> str:
    """The file as it is imported: below the current directory, or else below the deepest entry of `sys.path`."""
    folders = [folder for folder in (os.getcwd(), *sys.path) if folder and file.startswith(folder.rstrip("/") + "/")]
    return f"{os.path.relpath(file, max(folders, key=len)) if folders else file}:{line}"
