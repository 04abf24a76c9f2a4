"""Values of Python expressions in a gunicorn.conf.py, as far as they follow without running anything.

Constants, names that have been assigned before, lists, sums, f-strings; the environment's defaults; the number of CPUs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from tailrace_tools.migrate.source import CPUS, UNSET, shortened

_CPU_COUNTS: Final = ("multiprocessing.cpu_count", "os.cpu_count", "cpu_count", "psutil.cpu_count", "mp.cpu_count")
_ENVIRON: Final = ("os.environ.get", "environ.get", "os.getenv", "getenv")
# Constants of the module ssl, which gunicorn's `ssl_version` takes by name.
_SSL_VERSION: Final = re.compile(r"(ssl\.)?PROTOCOL_(TLS|SSL)\w*")
_CONVERSIONS: Final = {"int": int, "float": float, "str": str, "bool": bool}
# Limits of a value: characters of a text, elements of a list, characters of all its texts, and a whole number.
_LONGEST: Final = 4096
_LONGEST_TEXTS: Final = 65536
_LARGEST: Final = 10**15
# Variables that a value depends on and that are named, and characters of such a name.
_MAX_NAMED: Final = 8
_LONGEST_NAME: Final = 100


@dataclass(frozen=True)
class Found:
    """The value of an expression, CPUS or UNSET; and what it depends on, in words."""

    value: Any
    depends: tuple[str, ...] = ()


NOTHING: Final = Found(UNSET)


def evaluate(node: ast.expr, names: Mapping[str, Found]) -> Found:
    """The value. names: what has been assigned before.

    A value that no setting has is UNSET: a long text, a large number, a list in a list. A few lines could otherwise
    double a value until it fills the memory.
    """
    if isinstance(node, ast.Name):
        return names.get(node.id, NOTHING)
    found = _evaluated(node, names)
    return found if _is_small(found.value) else Found(UNSET, found.depends)


def _is_small(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST
    if isinstance(value, list):
        is_flat = len(value) <= _LONGEST and not any(isinstance(each, list) for each in value)
        return is_flat and sum(len(each) for each in value if isinstance(each, str)) <= _LONGEST_TEXTS
    return not isinstance(value, int) or abs(value) < _LARGEST


def _evaluated(node: ast.expr, names: Mapping[str, Found]) -> Found:
    if isinstance(node, ast.Constant):
        value = node.value
        return Found(value) if value is None or isinstance(value, (str, int, float)) else NOTHING
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return _list([evaluate(each, names) for each in node.elts])
    if isinstance(node, ast.JoinedStr):
        return _text(node, names)
    if isinstance(node, ast.BinOp):
        return _operation(node, names)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        return _unary(node, names)
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return _first(node, names)
    if isinstance(node, ast.IfExp):
        return _conditional(node, names)
    if isinstance(node, ast.Compare):
        # `os.environ.get("DEBUG", "0") == "1"`
        return _comparison(node, names)
    if isinstance(node, ast.Subscript) and dotted(node.value) in ("os.environ", "environ"):
        return Found(UNSET, (_variable(node.slice),))
    if isinstance(node, ast.Attribute) and _SSL_VERSION.fullmatch(name := dotted(node)):
        return Found(name)
    if isinstance(node, ast.Call):
        return _call(node, names)
    return NOTHING


def dotted(node: ast.expr) -> str:
    """`os.environ.get` of such an expression; else ""."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def _variable(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return f"${shortened(node.value, _LONGEST_NAME)}"
    return "the environment"


def _depends(parts: Iterable[Found]) -> tuple[str, ...]:
    """What the values depend on; only the first variables are named."""
    found: dict[str, None] = {}
    for part in parts:
        for each in part.depends:
            if each not in found and len(found) >= _MAX_NAMED:
                return (*found, "others")
            found[each] = None
    return tuple(found)


def _list(parts: list[Found]) -> Found:
    depends = _depends(parts)
    if any(part.value is UNSET or part.value is CPUS for part in parts):
        return Found(UNSET, depends)
    return Found([part.value for part in parts], depends)


def _concatenated(texts: Iterable[str]) -> Any:
    """The texts as one; UNSET if that is too long, which is known before it is made."""
    kept: list[str] = []
    length = 0
    for each in texts:
        length += len(each)
        if length > _LONGEST:
            return UNSET
        kept.append(each)
    return "".join(kept)


def _text(node: ast.JoinedStr, names: Mapping[str, Found]) -> Found:
    parts = []
    for each in node.values:
        if isinstance(each, ast.FormattedValue):
            if each.format_spec is not None or each.conversion != -1:
                return NOTHING
            parts.append(evaluate(each.value, names))
        else:
            parts.append(evaluate(each, names))
    depends = _depends(parts)
    if any(part.value is UNSET or part.value is CPUS or isinstance(part.value, list) for part in parts):
        return Found(UNSET, depends)
    return Found(_concatenated(str(part.value) for part in parts), depends)


def _operation(node: ast.BinOp, names: Mapping[str, Found]) -> Found:
    left, right = evaluate(node.left, names), evaluate(node.right, names)
    depends = _depends((left, right))
    one, other = left.value, right.value
    if UNSET in (one, other):
        return Found(UNSET, depends)
    if CPUS in (one, other):
        return Found(
            CPUS if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div)) else UNSET, depends
        )
    if isinstance(node.op, ast.Add) and type(one) is type(other) and isinstance(one, (str, list)):
        return Found(one + other, depends)
    if isinstance(node.op, ast.Mod) and isinstance(one, str):
        values = other if isinstance(other, list) else [other]
        pieces = re.split("%[sd]", one)
        if one.count("%") == len(pieces) - 1 == len(values):
            pairs = zip_longest(pieces, map(str, values), fillvalue="")
            return Found(_concatenated(each for pair in pairs for each in pair), depends)
        return Found(UNSET, depends)
    if _is_number(one) and _is_number(other) and abs(one) < _LARGEST and abs(other) < _LARGEST:
        if isinstance(node.op, ast.Add):
            return Found(one + other, depends)
        if isinstance(node.op, ast.Sub):
            return Found(one - other, depends)
        if isinstance(node.op, ast.Mult):
            return Found(one * other, depends)
        if isinstance(node.op, ast.FloorDiv) and other:
            return Found(one // other, depends)
        if isinstance(node.op, ast.Div) and other:
            return Found(one / other, depends)
    return Found(UNSET, depends)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unary(node: ast.UnaryOp, names: Mapping[str, Found]) -> Found:
    found = evaluate(node.operand, names)
    if isinstance(node.op, ast.Not) and found.value not in (UNSET, CPUS):
        return Found(not found.value, found.depends)
    if isinstance(node.op, ast.USub) and _is_number(found.value):
        return Found(-found.value, found.depends)
    return Found(UNSET, found.depends)


def _first(node: ast.BoolOp, names: Mapping[str, Found]) -> Found:
    """`os.environ.get("PORT") or 8000`: the first value that is known and true."""
    parts: list[Found] = []
    for each in node.values:
        parts.append(evaluate(each, names))
        if parts[-1].value not in (UNSET, None, "", 0, False):
            return Found(parts[-1].value, _depends(parts))
    return Found(UNSET, _depends(parts))


def _conditional(node: ast.IfExp, names: Mapping[str, Found]) -> Found:
    """The value that follows from the environment's defaults; otherwise the last one."""
    test = evaluate(node.test, names)
    found = evaluate(node.orelse if test.value in (UNSET, CPUS) or not test.value else node.body, names)
    return Found(found.value, _depends((test, found)) or ("a condition",))


def _comparison(node: ast.Compare, names: Mapping[str, Found]) -> Found:
    left = evaluate(node.left, names)
    right = evaluate(node.comparators[0], names)
    depends = _depends((left, right))
    known = len(node.ops) == 1 and not {UNSET, CPUS} & {each for each in (left.value, right.value) if _hashable(each)}
    if known and isinstance(node.ops[0], ast.Eq):
        return Found(left.value == right.value, depends)
    if known and isinstance(node.ops[0], ast.In) and isinstance(right.value, list):
        return Found(left.value in right.value, depends)
    return Found(UNSET, depends)


def _hashable(value: object) -> bool:
    return not isinstance(value, (list, dict))


def _call(node: ast.Call, names: Mapping[str, Found]) -> Found:
    name = dotted(node.func)
    if name in _CPU_COUNTS or (name == "len" and node.args and _is_affinity(node.args[0])):
        return Found(CPUS)
    if name in _ENVIRON and node.args:
        default = next((each.value for each in node.keywords if each.arg == "default"), None)
        default = node.args[1] if len(node.args) > 1 else default
        variable = _variable(node.args[0])
        if default is None:
            return Found(UNSET, (variable,))
        found = evaluate(default, names)
        return Found(found.value, _depends((Found(UNSET, (variable,)), found)))
    if name in _CONVERSIONS and len(node.args) == 1 and not node.keywords:
        found = evaluate(node.args[0], names)
        if found.value in (UNSET, CPUS):
            return found
        if isinstance(found.value, list):
            return Found(UNSET, found.depends)
        try:
            return Found(_CONVERSIONS[name](found.value), found.depends)
        except (TypeError, ValueError, OverflowError):
            return Found(UNSET, found.depends)
    if name in ("min", "max", "round", "math.ceil", "math.floor", "ceil"):
        parts = [evaluate(each, names) for each in node.args]
        depends = _depends(parts)
        if any(part.value is CPUS for part in parts):
            return Found(CPUS, depends)
        if name in ("min", "max") and len(parts) > 1 and all(_is_number(part.value) for part in parts):
            return Found((min if name == "min" else max)(part.value for part in parts), depends)
        return Found(UNSET, depends)
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("lower", "strip", "upper") and not node.args:
        found = evaluate(node.func.value, names)
        return Found(getattr(found.value, node.func.attr)(), found.depends) if isinstance(found.value, str) else found
    return Found(UNSET, _depends(evaluate(arg, names) for arg in node.args))


def _is_affinity(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).endswith("sched_getaffinity")
