"""The imports of a Python package, by `ast`: also those inside of functions and under `TYPE_CHECKING`.

An import goes to the module that it names. Importing `a.b` runs `a/__init__.py` as well, which makes no edge of its
own: only a name that `__init__.py` itself defines does, and one that it imports leads on to the file that defines it.
An `__init__.py` that only imports (and has `__all__` and a docstring) has no edges. The stub of a compiled module
stands for that module.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from structure.sources import Sources, Use

_FUNCTIONS_THAT_IMPORT: Final = frozenset({"import_module", "__import__"})


class _Module:
    """One file, as far as the graph needs it."""

    def __init__(self, name: str, file: str, text: str) -> None:
        self.name = name
        self.file = file
        self.is_package = file.endswith("/__init__.py")
        self.tree = ast.parse(text, file)
        # name -> where it comes from: the module, and the name in it ("" when the module itself is bound)
        self.bound: dict[str, tuple[str, str]] = {}
        self.defined: set[str] = set()

    @property
    def only_imports(self) -> bool:
        """Whether nothing is defined here."""
        return self.is_package and all(_is_import(node) for node in self.tree.body)

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that `from ... import` names."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        kept = len(parts) - node.level + self.is_package
        return ".".join([*parts[:kept], *([node.module] if node.module else [])])


def read(root: Path, package: str, sources: Sources) -> None:
    """Adds the files below `root / package`."""
    modules: dict[str, _Module] = {}
    for path in sorted([*(root / package).rglob("*.py"), *(root / package).rglob("*.pyi")]):
        file = path.relative_to(root).as_posix()
        name = file.rsplit(".", 1)[0].removesuffix("/__init__").replace("/", ".")
        modules.setdefault(name, _Module(name, file, path.read_text()))
        sources.add_file(file)
    for module in modules.values():
        _bind(module)
    for module in modules.values():
        for file, line, text in _outside(module):
            sources.uses.append(Use(file, line, text))
        if not module.only_imports:
            for target, line, name in _edges(module, modules):
                sources.add_import(module.file, target, line, name)


def _is_import(node: ast.stmt) -> bool:
    """A docstring, an import, `__all__`, and a condition or `try` around them."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return all(map(_is_import, [*node.body, *node.orelse]))
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    return False


def _bind(module: _Module) -> None:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    module.bound[alias.asname] = (alias.name, "")
                else:
                    top = alias.name.partition(".")[0]
                    module.bound[top] = (top, "")
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module.bound[alias.asname or alias.name] = (module.absolute(node), alias.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            module.defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            module.defined.add(node.id)


def _edges(module: _Module, modules: dict[str, _Module]) -> list[tuple[str, int, str]]:
    """(file, line, name) of all that this module imports from others."""
    found: list[tuple[str, int, str]] = []

    def add(origin: tuple[str, str], line: int) -> None:
        name, item = _origin(*origin, modules)
        if name in modules and (item or not modules[name].is_package):
            found.append((modules[name].file, line, item or name.rpartition(".")[2]))

    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in modules:
                    add((alias.name, ""), node.lineno)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    add((module.absolute(node), "*"), node.lineno)
                else:
                    add((module.absolute(node), alias.name), node.lineno)
        elif isinstance(node, ast.Attribute):
            # `package.name`: a package that is imported as a whole is followed to what is taken from it.
            dotted = _dotted(node)
            if dotted and dotted[0] in module.bound:
                name, item = _origin(*module.bound[dotted[0]], modules)
                for part in dotted[1:]:
                    if item or name not in modules or not modules[name].is_package:
                        break
                    add((name, part), node.lineno)
                    name, item = _origin(name, part, modules)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in _FUNCTIONS_THAT_IMPORT and node.args[0].value in modules:
                add((str(node.args[0].value), ""), node.lineno)
    return found


def _origin(module: str, item: str, modules: dict[str, _Module]) -> tuple[str, str]:
    """The module that defines the item, and the item; "" when what is meant is a module."""
    seen = set()
    while item and (module, item) not in seen:
        seen.add((module, item))
        if f"{module}.{item}" in modules:
            return f"{module}.{item}", ""
        if module not in modules:
            break
        within = modules[module]
        if not within.is_package or item in within.defined or item not in within.bound:
            break
        there = within.bound[item]
        if there[0] not in modules:
            break
        module, item = there
    return module, item


def _dotted(node: ast.expr) -> list[str]:
    """The parts of `a.b.c`; none when it begins with anything but a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return [*before, node.attr]
    return []


def _outside(module: _Module) -> list[tuple[str, int, str]]:
    """What the module names of other packages, by full name: `os.fork` also when it was imported as `fork`."""
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found += [(module.file, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [(module.file, node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Attribute):
            dotted = _dotted(node)
            if dotted and dotted[0] in module.bound:
                origin = ".".join(filter(None, module.bound[dotted[0]]))
                found.append((module.file, node.lineno, ".".join([origin, *dotted[1:]])))
    return found
