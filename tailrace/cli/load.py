"""From `MODULE:CALLABLE` to the application object.

Every failure is one `LoadError` whose message says what to do. When the application's own modules raise, the error has
their traceback; when a module or name is missing, it has none.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.cli import candidates
from tailrace.cli.callables import accepts, described, is_asgi, kind_of
from tailrace.cli.candidates import file_names, nearest, public_names
from tailrace.cli.tracebacks import formatted, summary, users_frames
from tailrace.errors import LoadError
from tailrace.logs import log
from tailrace.system import forks, gil

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

DEFAULT_NAMES: Final = ("application", "app")


class Target(NamedTuple):
    """What a specification names: a module or a file, and an expression in it (empty: `application` or `app`)."""

    module: str
    expression: str

    @property
    def is_file(self) -> bool:
        """True when `module` is the path of a file: `mysite.wsgi` is one only where such a file stands."""
        return (
            "/" in self.module
            or self.module.endswith(".py")
            or (self.module.endswith(".wsgi") and os.path.isfile(self.module))
        )


def load(specification: str, *, factory: bool = False) -> WSGIApplication:
    """The application that `specification` names. Raises LoadError."""
    target = parse(specification)
    with forks.application(), gil.watched():
        module = _import(target)
        found = _find(module, target)
        if factory:
            found = _call(found, (), {}, specification)
    check(found, specification)
    application: WSGIApplication = found
    return application


def module(name: str) -> ModuleType:
    """The module, or the file as a module, that `name` names. Raises LoadError."""
    target = parse(name)
    if target.expression:
        raise LoadError(f"{name!r} names an object in a module; write only the name of the module: {target.module}")
    with forks.application():
        return _import(target)


def parse(specification: str) -> Target:
    """Splits a specification. Raises LoadError when it cannot be one."""
    specification = specification.strip()
    module, colon, expression = specification.partition(":")
    module, expression = module.strip(), expression.strip()
    if not module or (colon and not expression):
        raise LoadError(f"{specification!r} names no application; write module:callable, as in mysite.wsgi:application")
    target = Target(module, expression)
    if not target.is_file and not all(part.isidentifier() for part in module.split(".")):
        raise LoadError(f"{module!r} is neither the name of a module (mysite.wsgi) nor the path of a file (./wsgi.py)")
    if expression:
        _parse_expression(target)
    return target


def check(candidate: object, specification: str) -> None:
    """Raises LoadError unless `candidate` can be called as a WSGI application."""
    if is_asgi(candidate):
        raise LoadError(
            f"{specification}: this is an ASGI application (async); Tailrace serves WSGI. Serve it with an ASGI "
            "server, or wrap it with a2wsgi.ASGIMiddleware"
        )
    if not callable(candidate):
        raise LoadError(
            f"{specification}: {kind_of(candidate)} is not callable; a WSGI application is a callable that "
            "takes (environ, start_response)"
        )
    if accepts(candidate, 2) is False:
        remedy = (
            "if it returns the application, add --factory or write the call: " + _with_call(specification)
            if accepts(candidate, 0)
            else "a WSGI application takes two arguments, (environ, start_response)"
        )
        raise LoadError(f"{specification}: {described(candidate)} cannot be called with two arguments; {remedy}")


def _parse_expression(target: Target) -> ast.expr:
    """The expression after the colon: dotted names, at the end perhaps a call with literal arguments."""
    problem = LoadError(
        f"{target.module}:{target.expression}: write a name, a dotted name, or a call with literal arguments such as "
        "create_app('production') after the colon"
    )
    try:
        node = ast.parse(target.expression, mode="eval").body
        path = node
        if isinstance(node, ast.Call):
            _arguments(node)
            path = node.func
        while isinstance(path, ast.Attribute):
            path = path.value
    except (SyntaxError, ValueError):
        raise problem from None
    if not isinstance(path, ast.Name):
        raise problem
    return node


def _arguments(node: ast.Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The literal arguments of a call. Raises ValueError."""
    if any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("unpacking")
    positional = tuple(ast.literal_eval(argument) for argument in node.args)
    return positional, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}


def _import(target: Target) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return _import_file(target) if target.is_file else _import_module(target)


def _import_module(target: Target) -> ModuleType:
    name = target.module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if (name == missing or name.startswith(missing + ".")) and not users_frames(error.__traceback__):
            raise candidates.module_not_found(missing) from None
        raise _failed(f"importing {name}", error) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, OSError) and error.filename and not users_frames(error.__traceback__):
            # Raised by the import system: the file exists, and cannot be read.
            raise LoadError(f"{name}: {error.filename} cannot be read: {error.strerror}") from None
        raise _failed(f"importing {name}", error) from None


def _import_file(target: Target) -> ModuleType:
    path = Path(target.module)
    try:
        # Opened, so that a file that cannot be read is told apart from an OSError that the application raises.
        path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError):
        raise LoadError(f"{target.module}: no such file{nearest(path.name, file_names(path.parent))}") from None
    except IsADirectoryError:
        hint = (
            nearest(path.name, file_names(path.parent)) or "; name the file in it, or the module as Python imports it"
        )
        raise LoadError(f"{target.module}: is a directory, not a file{hint}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise LoadError(f"{target.module}: cannot be read: {getattr(error, 'strerror', error)}") from None
    path = path.resolve()
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if path.suffix == ".py" and all(part.isidentifier() for part in parts) and parts[0] not in sys.stdlib_module_names:
        # Under its importable name, so that `import wsgi` in the application, and pickles, refer to the same module.
        module = _import_module(Target(".".join(parts), ""))
        if getattr(module, "__file__", None) == str(path):
            return module
    name = "tailrace_application_" + "".join(character if character.isalnum() else "_" for character in path.stem)
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del sys.modules[name]
        raise _failed(f"running {target.module}", error) from None
    return module


def _find(module: ModuleType, target: Target) -> Any:
    """The object that the expression names in the module, or the module's `application` or `app`."""
    if not target.expression:
        for name in DEFAULT_NAMES:
            if hasattr(module, name):
                return getattr(module, name)
        raise LoadError(f"{target.module} has neither `application` nor `app`{candidates.of(module, target.module)}")
    node = _parse_expression(target)
    call = node if isinstance(node, ast.Call) else None
    found: Any = module
    names = ast.unparse(call.func if call else node).split(".")
    for depth, name in enumerate(names):
        try:
            found = getattr(found, name)
        except AttributeError:
            owner = ":".join(filter(None, (target.module, ".".join(names[:depth]))))
            hint = candidates.of(module, target.module, name) if depth == 0 else nearest(name, public_names(found))
            raise LoadError(f"{owner} has no {name!r}{hint}") from None
    if call:
        positional, keywords = _arguments(call)
        return _call(found, positional, keywords, f"{target.module}:{target.expression}")
    return found


def _call(factory: object, positional: tuple[Any, ...], keywords: dict[str, Any], specification: str) -> Any:
    """The application that a factory makes."""
    if not callable(factory):
        raise LoadError(f"{specification}: {kind_of(factory)} is not callable, so it cannot be a factory")
    if accepts(factory, len(positional), keywords) is False:
        count = len(positional) + len(keywords)
        given = f"with {log.counted(count, 'argument')}" if count else "without arguments"
        remedy = (
            "omit --factory if it is the application itself" if accepts(factory, 2) else "write module:name(arguments)"
        )
        raise LoadError(f"{specification}: {described(factory)} cannot be called {given}; {remedy}")
    try:
        return factory(*positional, **keywords)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(f"calling {specification}", error) from None


def _failed(action: str, error: BaseException) -> LoadError:
    """The error for an exception of the application's own code."""
    if isinstance(error, SystemExit):
        return LoadError(
            f"{action} ended with sys.exit({error.code!r}); is this a script rather than a module with an application?"
        )
    return LoadError(
        f"{action} failed: {summary(error)}",
        formatted(error, users_frames(error.__traceback__)),
    )


def _with_call(specification: str) -> str:
    return f"{specification}()" if ":" in specification else f"{specification}:name()"
