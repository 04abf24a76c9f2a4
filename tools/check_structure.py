"""Checks the shape of the Rust house: who may import whom, where `unsafe` and `pyo3` may stand, how long files get.

    python tools/check_structure.py

`LAYERS` is the declared order of each crate, lowest first: a file may name files of its own layer and of lower ones.
Files that need each other stand in one layer, or in `EXCEPTIONS`, with a reason. Modules of tests are not looked at.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LAYERS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "http": (
        ("octets",),
        ("limits",),
        # A head checks its target while it parses; the target's rules speak of spans of the head.
        ("head", "target"),
        ("framing",),
        ("body", "encode"),
    ),
    "server": (
        ("sys", "budget", "claim", "load", "record", "segments", "timers"),
        ("accept", "crew", "phase", "scoreboard", "wire"),
        # A request may have a body that is still arriving, which tells what part of a request was late.
        ("outbox", "gather", "request", "inflow", "stats"),
        ("layout", "spool", "log_format"),
        # The spare parts of a thread are answers, and an answer takes its date from the thread.
        ("answer", "local"),
        ("access_log",),
        ("config",),
        ("exchange",),
        # A connection is its stages; `ready` hands out the turns that `handler` speaks of.
        ("connection", "backlog", "posts", "stage", "handler", "hub", "ready", "slots", "streams"),
        ("reactor",),
    ),
    "wsgi": (
        ("memory",),
        ("calls", "cell", "errors", "memo", "names", "pause", "payload", "pool", "target", "text"),
        ("input",),
        ("error_stream", "headers", "overdue", "scoreboard", "settings"),
        ("environ", "response"),
        ("start_response", "breath"),
        ("file_wrapper", "listeners"),
        ("blocks",),
        ("app",),
        ("hub",),
        ("server",),
    ),
}
# What goes against the order, and why it must: (crate, file, what it names).
EXCEPTIONS: Final[dict[tuple[str, str, str], str]] = {
    ("server", "answer", "backlog"): "it is asked for room, and answers as the connection does",
    ("server", "answer", "connection"): "a finished answer gives the connection back, and sends through it until then",
    ("server", "answer", "posts"): "it tells which thread carries its request, and until when",
    ("server", "answer", "stage"): "it says what follows for the connection",
    ("server", "inflow", "connection"): "whoever reads a streamed body reads the connection's socket",
    ("server", "exchange", "connection"): "an exchange is made for a connection",
    ("server", "connection", "reactor"): "a connection sets deadlines, queues requests and closes itself there",
    ("server", "ready", "reactor"): "a turn lets the reactor account for its exchanges",
}
CRATES: Final[dict[str, tuple[str, ...]]] = {"http": (), "server": ("http",), "wsgi": ("http", "server")}
PYO3: Final = ("crates/wsgi/",)
UNSAFE: Final = ("crates/server/src/sys.rs", "crates/wsgi/src/")
LONG: Final = 600

_CRATE_PATH: Final = re.compile(r"\bcrate::(\{[^}]*\}|\w+)")
_OTHER_CRATE: Final = re.compile(r"\bpenstock_(\w+)::")
_COMMENT: Final = re.compile(r"//[^\n]*")
_STRING: Final = re.compile(r'b?"(?:[^"\\]|\\.)*"', re.DOTALL)
_TESTS: Final = re.compile(r"#\[cfg\(test\)\]\s*mod \w+ \{.*", re.DOTALL)


def main() -> int:
    """Prints one line a finding; 1 when there is any."""
    root = Path(__file__).resolve().parent.parent
    findings = [*crate_findings(root)]
    for crate, layers in LAYERS.items():
        findings += file_findings(root, crate, layers)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def crate_findings(root: Path) -> Iterator[str]:
    """Dependencies between the crates, and pyo3, as the manifests state them."""
    for crate, allowed in CRATES.items():
        manifest = f"crates/{crate}/Cargo.toml"
        dependencies = re.search(r"\[dependencies\]\n([^\[]*)", (root / manifest).read_text())
        for name in re.findall(r"^([\w-]+)", dependencies[1] if dependencies else "", re.MULTILINE):
            if name.startswith("penstock-") and name.removeprefix("penstock-") not in allowed:
                yield f"{manifest}: {crate} must not depend on {name}"
            if name.startswith("pyo3") and not manifest.startswith(PYO3):
                yield f"{manifest}: only crates/wsgi may name pyo3"


def file_findings(root: Path, crate: str, layers: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    """The findings in the sources of one crate."""
    rank = {name: depth for depth, layer in enumerate(layers) for name in layer}
    source = root / "crates" / crate / "src"
    modules = {module_of(path.relative_to(source)) for path in source.rglob("*.rs")} - {"lib"}
    for name in sorted(modules - rank.keys()):
        yield f"crates/{crate}/src/{name}.rs: give it a layer in tools/check_structure.py"
    for name in sorted(rank.keys() - modules):
        yield f"tools/check_structure.py: crate {crate} has no {name}"
    against = set()
    for path in sorted(source.rglob("*.rs")):
        place = str(path.relative_to(root))
        text = path.read_text()
        code = code_of(text)
        own = module_of(path.relative_to(source))
        if own != "lib":
            for used in sorted(modules_named(code, modules) & rank.keys()):
                if rank[used] > rank.get(own, len(layers)):
                    against.add((crate, own, used))
                    if (crate, own, used) in EXCEPTIONS:
                        continue
                    yield f"{place}: names {used}, which stands in a higher layer"
        for other in sorted(set(_OTHER_CRATE.findall(code)) - set(CRATES[crate])):
            yield f"{place}: {crate} must not use the crate {other}"
        if re.search(r"\bunsafe\b", code) and not place.startswith(UNSAFE):
            yield f"{place}: unsafe may stand only in {' and '.join(UNSAFE)}"
        if re.search(r"\bpyo3\b", code) and not place.startswith(PYO3):
            yield f"{place}: only crates/wsgi may name pyo3"
        lines = text.count("\n")
        if lines > LONG and not re.search(r"\blong(er)?\b|\blines\b", first_comment(text)):
            yield f"{place}: {lines} lines; above {LONG} its first comment says why it is long"

    for _, own, used in sorted(key for key in EXCEPTIONS.keys() - against if key[0] == crate):
        yield f"tools/check_structure.py: {own} no longer names {used}; drop the exception"


def module_of(path: Path) -> str:
    """The top-level module that a file belongs to."""
    return path.parts[0].removesuffix(".rs")


def code_of(text: str) -> str:
    """The source without tests, strings and comments."""
    return _COMMENT.sub("", _STRING.sub('""', _TESTS.sub("", text)))


def modules_named(code: str, modules: set[str]) -> set[str]:
    """The modules of its own crate that the code names."""
    found: set[str] = set()
    for group in _CRATE_PATH.findall(code):
        found.update(re.findall(r"\w+", group))
    return found & modules


def first_comment(text: str) -> str:
    """The comment at the top of a file."""
    return "\n".join(line for line in text.split("\n\n")[0].splitlines() if line.startswith("//!"))


if __name__ == "__main__":
    sys.exit(main())
