"""From `MODULE:CALLABLE` to the application object.

Every failure is one `LoadError` whose message says what to do. An exception inside the application's own modules is
told apart from a wrong path: it carries the application's traceback.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.machinery
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import LoadError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

DEFAULT_NAMES: Final = ("application", "app")
_FACTORY_NAMES: Final = (
    "create_app",
    "make_app",
    "get_app",
    "build_app",
    "app_factory",
    "create_application",
    "get_wsgi_application",
)
_OUR_FILES: Final = (__file__, importlib.__file__, importlib.util.__file__, "<frozen importlib")


@dataclass(frozen=True)
class Target:
    """What a specification names: a module or a file, and an expression in it (empty: `application` or `app`)."""

    module: str
    expression: str

    @property
    def is_file(self) -> bool:
        """True when `module` is the path of a file: `mysite.wsgi` is one only where such a file stands."""
        return (
            "/" in self.module
            or self.module.endswith(".py")
            or (self.module.endswith(".wsgi") and Path(self.module).is_file())
        )


def load(specification: str, *, factory: bool = False) -> WSGIApplication:
    """The application that `specification` names. Raises LoadError."""
    target = parse(specification)
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
        raise LoadError(f"{name!r} names something in a module; name the module alone: {target.module}")
    return _import(target)


def parse(specification: str) -> Target:
    """Splits a specification. Raises LoadError when it cannot be one."""
    specification = specification.strip()
    module, colon, expression = specification.partition(":")
    module, expression = module.strip(), expression.strip()
    if not module or (colon and not expression):
        raise LoadError(
            f"{specification!r} names no application; write it as module:callable, for instance mysite.wsgi:application"
        )
    target = Target(module, expression)
    if not target.is_file and not all(part.isidentifier() for part in module.split(".")):
        raise LoadError(f"{module!r} is neither the name of a module (mysite.wsgi) nor the path of a file (./wsgi.py)")
    if expression:
        _parse_expression(target)
    return target


def check(candidate: object, specification: str) -> None:
    """Raises LoadError unless `candidate` can be called as a WSGI application."""
    if _is_asgi(candidate):
        raise LoadError(
            f"{specification}: this is an ASGI application (async); Penstock serves WSGI. Serve it with an ASGI "
            "server, or wrap it with a2wsgi.ASGIMiddleware"
        )
    if not callable(candidate):
        raise LoadError(
            f"{specification}: a {type(candidate).__name__} is not callable; a WSGI application is a callable that "
            "takes (environ, start_response)"
        )
    if _accepts(candidate, 2) is False:
        remedy = (
            "if it returns the application, add --factory or write the call: " + _with_call(specification)
            if _accepts(candidate, 0)
            else "a WSGI application takes two arguments, (environ, start_response)"
        )
        raise LoadError(f"{specification}: {_described(candidate)} cannot be called with two arguments; {remedy}")


def _parse_expression(target: Target) -> ast.expr:
    """The expression after the colon: dotted names, at the end perhaps a call with literal arguments."""
    problem = LoadError(
        f"{target.module}:{target.expression}: after the colon comes a name, a dotted name, or a call with literal "
        "arguments such as create_app('production')"
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
        if (name == missing or name.startswith(missing + ".")) and not _users_frames(error.__traceback__):
            raise _module_not_found(name, missing) from None
        raise _failed(f"importing {name}", error) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(f"importing {name}", error) from None


def _import_file(target: Target) -> ModuleType:
    path = Path(target.module)
    if not path.is_file():
        what = "is a directory, not a file" if path.is_dir() else "no such file"
        raise LoadError(f"{target.module}: {what}{_nearest(path.name, _file_names(path.parent))}")
    path = path.resolve()
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if path.suffix == ".py" and all(part.isidentifier() for part in parts) and parts[0] not in sys.stdlib_module_names:
        # Under its importable name, so that the application's own `import wsgi` and pickles mean this very module.
        module = _import_module(Target(".".join(parts), ""))
        if getattr(module, "__file__", None) == str(path):
            return module
    name = "penstock_application_" + "".join(character if character.isalnum() else "_" for character in path.stem)
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
        raise LoadError(f"{target.module} has neither `application` nor `app`{_candidates(module, target)}")
    node = _parse_expression(target)
    call = node if isinstance(node, ast.Call) else None
    found: Any = module
    names = ast.unparse(call.func if call else node).split(".")
    for depth, name in enumerate(names):
        try:
            found = getattr(found, name)
        except AttributeError:
            owner = ":".join(filter(None, (target.module, ".".join(names[:depth]))))
            hint = _candidates(module, target, name) if depth == 0 else _nearest(name, _public(found))
            raise LoadError(f"{owner} has no {name!r}{hint}") from None
    if call:
        positional, keywords = _arguments(call)
        return _call(found, positional, keywords, f"{target.module}:{target.expression}")
    return found


def _call(factory: object, positional: tuple[Any, ...], keywords: dict[str, Any], specification: str) -> Any:
    """The application that a factory makes."""
    if not callable(factory):
        raise LoadError(f"{specification}: a {type(factory).__name__} is not callable, so it is no factory")
    if _accepts(factory, len(positional), keywords) is False:
        given = f"with {len(positional) + len(keywords)} arguments" if positional or keywords else "without arguments"
        remedy = (
            "leave --factory out if it is the application itself"
            if _accepts(factory, 2)
            else "write module:name(arguments)"
        )
        raise LoadError(f"{specification}: {_described(factory)} cannot be called {given}; {remedy}")
    try:
        return factory(*positional, **keywords)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(f"calling {specification}", error) from None


def _failed(action: str, error: BaseException) -> LoadError:
    """The application's own code raised."""
    if isinstance(error, SystemExit):
        return LoadError(
            f"{action} ended with sys.exit({error.code!r}); is this a script rather than a module with an application?"
        )
    return LoadError(f"{action} failed: {summary(error)}", formatted(error, _users_frames(error.__traceback__)))


def summary(error: BaseException) -> str:
    """The last line of a traceback: the exception's type and what it says."""
    return "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]


def formatted(error: BaseException, trace: TracebackType | None) -> str:
    """The traceback as Python prints it, from the frames of `trace` on."""
    return "".join(traceback.TracebackException(type(error), error, trace).format())


def _users_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is neither ours nor the import system's; later such frames stay out
    too."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OUR_FILES):
        trace = trace.tb_next
    step = trace
    while step is not None:
        following = step.tb_next
        while following is not None and following.tb_frame.f_code.co_filename.startswith("<frozen importlib"):
            following = following.tb_next
        step.tb_next = following
        step = following
    return trace


def _module_not_found(name: str, missing: str) -> LoadError:
    head = f"no module named {missing!r}"
    if "." in missing and (parent := sys.modules.get(missing.rpartition(".")[0])) is not None:
        attribute = missing.rpartition(".")[2]
        if hasattr(parent, attribute):
            return LoadError(
                f"{head}, but {parent.__name__} has {attribute!r}; did you mean {parent.__name__}:{attribute}?"
            )
        if not hasattr(parent, "__path__"):
            return LoadError(
                f"{head}: {parent.__name__} is a module, not a package{_nearest(attribute, _public(parent))}"
            )
        known = [f"{parent.__name__}.{module.name}" for module in pkgutil.iter_modules(parent.__path__)]
        return LoadError(f"{head}{_nearest(missing, known)}")
    here = Path.cwd()
    nested = next(
        (path for path in sorted(here.glob(f"*/{missing}*")) if path.name in (missing, f"{missing}.py")), None
    )
    if nested is not None:
        return LoadError(f"{head} in {here}, but {nested.relative_to(here)} exists; add --chdir {nested.parent.name}")
    known = [module.name for module in pkgutil.iter_modules([str(here)])]
    hint = (
        _nearest(missing, known)
        or "; start in the directory that holds it, or name it with --chdir, or install its package"
    )
    return LoadError(f"{head} in {here}, nor installed for {sys.executable}{hint}")


def _candidates(module: ModuleType, target: Target, wanted: str = "") -> str:
    """The end of a message: what in the module looks like an application."""
    public = list(_public(module))
    applications = [name for name in public if _looks_like_application(module, name)]
    factories = [f"{name}()" for name in public if name in _FACTORY_NAMES and _accepts(getattr(module, name), 0)]
    found = [*applications, *factories]
    if found:
        return "; these could be the application: " + ", ".join(f"{target.module}:{name}" for name in found[:5])
    return _nearest(wanted, public) or "; name the callable after a colon, as in module:callable"


def _looks_like_application(module: ModuleType, name: str) -> bool:
    try:
        return _is_like_application(module, getattr(module, name))
    except Exception:  # proxies, as of Flask's `request`, raise what they like when they are asked what they are
        return False


def _is_like_application(module: ModuleType, value: Any) -> bool:
    if inspect.isclass(value) or inspect.ismodule(value) or not callable(value) or _is_asgi(value):
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
    # A function of any other module with two parameters is most likely an import (`partial`, `path`, ...).
    return len(names) == 2 and (names[-1].startswith("start") or getattr(value, "__module__", None) == module.__name__)


def _is_asgi(candidate: object) -> bool:
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


def _accepts(candidate: Callable[..., Any], count: int, keywords: dict[str, Any] | None = None) -> bool | None:
    """Whether the callable takes `count` positional arguments; None when it does not say.

    Wrapped functions are not followed: a decorator that turns `def view(request)` into an application says so by
    `*args`.
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


def _described(candidate: object) -> str:
    name = getattr(candidate, "__qualname__", None)
    if inspect.isclass(candidate):
        return f"the class {name}"
    return f"the function {name}" if inspect.isroutine(candidate) else f"a {type(candidate).__name__}"


def _with_call(specification: str) -> str:
    return f"{specification}()" if ":" in specification else f"{specification}:name()"


def _public(owner: object) -> Iterator[str]:
    return (name for name in dir(owner) if not name.startswith("_"))


def _file_names(directory: Path) -> list[str]:
    if not directory.is_dir():
        return []
    return [path.name for path in directory.iterdir() if path.suffix in (".py", ".wsgi")]


def _nearest(name: str, known: object) -> str:
    """The end of a message: the most similar of the known names."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)  # type: ignore[call-overload]
    return f"; did you mean {found[0]}?" if found else ""
