"""A gunicorn.conf.py, read as a syntax tree: nothing of it is executed.

Assignments at the top level are taken. What a condition, a loop or an import sets is named.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tailrace.errors import ConfigError
from tailrace_tools.migrate import source
from tailrace_tools.migrate.expressions import NOTHING, Found, dotted, evaluate
from tailrace_tools.migrate.source import CPUS, UNSET, Given, Remark, Source
from tailrace_tools.other_servers import find
from tailrace_tools.other_servers.rows import Server

_SETS_VARIABLE: Final = ("os.environ.setdefault", "environ.setdefault", "os.putenv")
# An encoding that the file declares, PEP 263.
_CODING: Final = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.MULTILINE)
# As Python counts lines, of which a form feed does not end one.
_LINE_END: Final = re.compile(r"\r\n?|\n")
_MAX_STATEMENTS: Final = 10_000


def read(path: Path) -> Source:
    """The settings. Raises ConfigError."""
    return parse(source.read(path), str(path))


def parse(content: bytes, name: str) -> Source:
    """The settings of a file with this content. Raises ConfigError."""
    try:
        with warnings.catch_warnings():
            # Of invalid escapes, which are not ours to report.
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except SyntaxError as error:
        where = f" (at line {error.lineno})" if error.lineno else ""
        raise ConfigError(f"{name}: not valid Python: {error.msg}{where}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{name}: not valid Python: {str(error) or 'nested too deeply'}") from None
    if sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) > _MAX_STATEMENTS:
        raise ConfigError(f"{name}: more than {_MAX_STATEMENTS} statements, so not a configuration")
    lines = _LINE_END.split(_decoded(content, name))
    try:
        return _Reader(name, lines).read(tree)
    except RecursionError:
        raise ConfigError(f"{name}: an expression is nested too deeply") from None


def _decoded(content: bytes, name: str) -> str:
    """The text, by the encoding that the file declares. Raises ConfigError."""
    found = _CODING.search(b"\n".join(content.splitlines()[:2]))
    encoding = found[1].decode() if found else "utf-8"
    try:
        return content.decode(encoding, errors="replace")
    except (LookupError, ValueError):
        # Python may have an encoding that does not take `errors`, such as idna.
        raise ConfigError(f"{name}: cannot be read as {encoding[:40]}; convert it to UTF-8 with `iconv`") from None


class _Reader:
    """Collects what the statements set, in their order; the last assignment counts."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self.lines = [source.shortened(line.rstrip(), source.SHOWN) for line in lines]
        self.names: dict[str, Found] = {}
        self.given: dict[str, Given] = {}
        self.found = Source(Server.GUNICORN, name)

    def read(self, tree: ast.Module) -> Source:
        for statement in tree.body:
            self._statement(statement)
        self.found.given = list(self.given.values())
        return self.found

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], node.value, node)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value, node)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            value = ast.BinOp(left=ast.Name(id=node.target.id), op=node.op, right=node.value)
            self._set(node.target.id, evaluate(value, self.names), node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._defined(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._imported(node)
        elif isinstance(node, ast.Expr):
            self._called(node)
        elif not isinstance(node, (ast.Pass, ast.Global, ast.Delete, ast.Assert)):
            self._nested(node)

    def _assign(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> None:
        if isinstance(target, ast.Name):
            self._set(target.id, evaluate(value, self.names), node)
        elif isinstance(target, ast.Subscript) and dotted(target.value) in ("os.environ", "environ"):
            self._variable(target.slice)
        else:
            for name in _assigned([node]):
                self._set(name, NOTHING, node)

    def _set(self, name: str, found: Found, node: ast.stmt) -> None:
        self.names[name] = found
        entry = find.setting(name)
        if entry is None:
            return
        computed = ""
        if found.depends:
            computed = f"it depends on {' and '.join(found.depends)}"
        elif found.value is CPUS:
            computed = "it depends on the number of CPUs"
        elif found.value is UNSET:
            computed = "its value is computed"
        self.given.pop(name, None)
        self.given[name] = Given(entry, name, found.value, self._text(node), _place(node), computed)
        self._hook(entry, name, node)

    def _defined(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.names.pop(node.name, None)
        if entry := find.setting(node.name):
            text = f"def {node.name}()" if not isinstance(node, ast.ClassDef) else f"class {node.name}"
            self.given[node.name] = Given(entry, node.name, UNSET, text, _place(node), "it is a function")
            self._hook(entry, node.name, node)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> None:
        for each in node.names:
            name = (each.asname or each.name).partition(".")[0]
            self.names.pop(name, None)
            if name == "*":
                self._remark(node, "the settings of the other file are not read: migrate that file, too")
            elif entry := find.setting(name):
                self.given[name] = Given(entry, name, UNSET, self._text(node), _place(node), "it is imported")
                self._hook(entry, name, node)

    def _hook(self, entry: find.Entry, name: str, node: ast.stmt) -> None:
        if entry.row.ours == "hooks":
            self.found.hooks[name] = self.lines[node.lineno - 1 : node.end_lineno or node.lineno]

    def _called(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Call):
            return
        if dotted(node.value.func) in _SETS_VARIABLE and node.value.args:
            self._variable(node.value.args[0])
        else:
            reason = (
                "Tailrace does not execute configuration files: call this in the application, or in the module that "
                "--hooks names"
            )
            self._remark(node, reason, is_warning="patch" not in self._text(node))

    def _nested(self, node: ast.stmt) -> None:
        """A condition or loop: collects the settings in it."""
        for each in ast.walk(node):
            if isinstance(each, ast.ImportFrom) and any(alias.name == "*" for alias in each.names):
                self._imported(each)
        names = sorted({name for name in _assigned([node]) if find.setting(name)})
        for name in _assigned([node]):
            self.names[name] = NOTHING
        if names:
            where = "; the value outside the condition is used" if any(name in self.given for name in names) else ""
            self._remark(node, f"it sets {', '.join(names)} conditionally, which a tailrace.toml cannot{where}")

    def _variable(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.found.variables.append(node.value)

    def _remark(self, node: ast.stmt, reason: str, *, is_warning: bool = True) -> None:
        self.found.remarks.append(Remark(self._text(node), _place(node), reason, is_warning))

    def _text(self, node: ast.stmt) -> str:
        """The first line of a statement."""
        first = self.lines[node.lineno - 1 : node.lineno]
        more = " ..." if (node.end_lineno or node.lineno) > node.lineno else ""
        return "".join(first).strip() + more


def _place(node: ast.stmt) -> str:
    return f"line {node.lineno}"


def _assigned(nodes: list[ast.stmt]) -> Iterator[str]:
    """Names that statements assign, functions aside."""
    waiting: list[ast.AST] = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            waiting += ast.iter_child_nodes(node)
