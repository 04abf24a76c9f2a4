"""Counts, from a trace, what one small GET and one block of a generator pass in our own crates.

    python tools/request_path.py             # files, functions, locks and atomic operations
    python tools/request_path.py --list      # and each file and function, callers before what they call

The core is built without optimization, so that nothing is inlined (target/path, a few minutes the first time), and a
server with one thread runs under Valgrind's callgrind, which counts each call. Valgrind: `apt-get install valgrind`.
The calls during many requests are divided by their number; what happens in at most every second request does not belong
to the path, nor does what the clock causes. A block is the difference between long and short generators. Under Valgrind
everything is slow, so blocks are never quick and responses are never held: this is the path of an idle server. On a
busy machine, the watcher takes the lead more often, which adds functions: compare figures of a machine at rest.

A function is ours if its source is in crates/; its closures belong to it, and are counted beside. A lock is a call of
`lock`, `try_lock`, `read` or `write` of a Mutex or RwLock of std from one of our functions, an atomic operation one of
a method of `core::sync::atomic`, and an Arc clone one of its `clone`.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "target/path"
PYTHON: Final = ROOT / ".venv/bin/python"
REQUESTS: Final = 100
BLOCKS: Final = (4, 20)
APPLICATION: Final = """
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    blocks = int(environ["QUERY_STRING"] or 0)
    return (b"block" for _ in range(blocks)) if blocks else [b"hello"]
"""
# Without the calls of assertions; and with the C library, as Valgrind hides the kernel's vDSO, which rustix would use.
PROFILE: Final = {
    "RUSTFLAGS": "--cfg=rustix_use_libc",
    "CARGO_PROFILE_DEV_OPT_LEVEL": "0",
    "CARGO_PROFILE_DEV_DEBUG": "line-tables-only",
    "CARGO_PROFILE_DEV_DEBUG_ASSERTIONS": "false",
    "CARGO_PROFILE_DEV_OVERFLOW_CHECKS": "false",
}
# What the leader does every 20 ms, which under Valgrind is not seldom; and the watcher.
PERIODIC: Final = re.compile(r"::Server::publish$|::Roles::watch$")
# The functions of crates/os/src/sync.rs are locks; what they call is not counted again.
_LOCK: Final = re.compile(
    r"\bstd::sync::(?:\w+::)*(?:Mutex|RwLock)<.*>::(?:try_)?(?:lock|read|write)$"
    r"|\btailrace_os::sync::(?:lock|read|write)$"
)
_ATOMIC: Final = re.compile(
    r"\bcore::sync::atomic::Atomic\w*(?:<.*>)?::(?:load|store|swap|fetch_\w+|compare_\w+|try_update|update)$"
)
_REFERENCE: Final = re.compile(r"^<?alloc::sync::Arc<.* as core::clone::Clone>::clone$")
_HASH: Final = re.compile(r"::h[0-9a-f]{16}$|'\d+$")
_CLOSURE: Final = re.compile(r"(?:::\{\{closure\}\})+.*$|(?:::\{closure#\d+\})+.*$")


class Function(NamedTuple):
    """file: as the compiler was given it, or ??? without one."""

    file: str
    name: str


@dataclass
class Calls:
    """The calls of a trace: each caller with what it calls, in the order of its code."""

    edges: dict[Function, dict[Function, float]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, caller: Function, called: Function, number: float) -> None:
        """More calls of the same kind."""
        self.edges[caller][called] = self.edges[caller].get(called, 0) + number

    def without_periodic(self) -> Calls:
        """The calls without those that the clock causes. A function that is called for both reasons does the same each
        time, as gprof assumes."""
        callers: dict[Function, list[tuple[Function, float]]] = defaultdict(list)
        for caller, found in self.edges.items():
            for called, number in found.items():
                callers[called].append((caller, number))
        parts = {function: 0.0 if PERIODIC.search(function.name) else 1.0 for function in [*self.edges, *callers]}
        # Deeper than any chain of calls that matters.
        for _ in range(60):
            for called, by in callers.items():
                if parts[called]:
                    total = sum(number for _, number in by)
                    parts[called] = sum(parts[caller] * number for caller, number in by) / total if total else 0.0
        kept = Calls()
        for caller, found in self.edges.items():
            for called, number in found.items():
                if parts[caller] and parts[called]:
                    kept.add(caller, called, number * parts[caller])
        return kept

    def of(self, called: Function) -> float:
        """How often it was called."""
        return sum(found.get(called, 0) for found in self.edges.values())


def parse(text: str) -> Calls:
    """The calls in a dump of callgrind (its names may be compressed, see "Callgrind Format Specification")."""
    calls = Calls()
    names: dict[tuple[str, str], str] = {}

    def name(kind: str, value: str) -> str:
        found = re.match(r"\((\d+)\)(?: (.*))?$", value)
        if not found:
            return value
        if found[2] is not None:
            names[kind, found[1]] = found[2]
        return names[kind, found[1]]

    file = called_file = ""
    caller = called = Function("", "")
    for line in text.splitlines():
        key, is_pair, value = line.partition("=")
        if not is_pair:
            continue
        if key in ("fl", "fi", "fe"):
            file = name("file", value)
        elif key == "fn":
            caller = Function(file, _HASH.sub("", name("function", value)))
        elif key in ("cfi", "cfl"):
            called_file = name("file", value)
        elif key == "cfn":
            # Without a file of its own, it has the current one.
            called = Function(called_file or file, _HASH.sub("", name("function", value)))
            called_file = ""
        elif key == "calls":
            calls.add(caller, called, int(value.split()[0]))
    return calls


def is_ours(function: Function) -> bool:
    """Whether its source is in crates/."""
    return "crates/" in function.file and "/registry/" not in function.file


def source(function: Function) -> str:
    """The path of its file in this tree."""
    return function.file[function.file.index("crates/") :]


def without_closures(name: str) -> str:
    """The function that a closure stands in; the function itself."""
    return _CLOSURE.sub("", name)


@dataclass
class Passed:
    """What one request, or one block, passes. Numbers are rounded averages."""

    functions: list[Function] = field(default_factory=list)
    closures: int = 0
    locks: Counter[str] = field(default_factory=Counter)
    atomics: Counter[str] = field(default_factory=Counter)
    references: Counter[str] = field(default_factory=Counter)

    @property
    def files(self) -> list[str]:
        """Those of the functions, in their order."""
        return list(dict.fromkeys(map(source, self.functions)))

    def row(self) -> list[int]:
        """The numbers of the table."""
        of_threads = (self.locks, self.atomics, self.references)
        return [len(self.files), len(self.functions), self.closures, *(found.total() for found in of_threads)]


def passed(calls: Calls, times: int, before: Calls | None = None) -> Passed:
    """What is called more often than every second time. before: calls that were made anyway, and do not count."""
    calls, before = calls.without_periodic(), before and before.without_periodic()
    found = Passed()
    named: dict[Function, None] = {}
    for function in in_order(calls):
        if not is_ours(function):
            continue
        average = (calls.of(function) - (before.of(function) if before else 0)) / times
        if average > 0.5:
            outer = without_closures(function.name)
            found.closures += outer != function.name
            named[Function(function.file, outer)] = None
    found.functions = list(named)
    for kind, pattern in ((found.locks, _LOCK), (found.atomics, _ATOMIC), (found.references, _REFERENCE)):
        for caller, called in calls.edges.items():
            if not is_ours(caller) or _LOCK.search(caller.name):
                continue
            earlier = before.edges.get(caller, {}) if before else {}
            matching = [each for each in called if pattern.search(each.name)]
            number = round(sum(called[each] - earlier.get(each, 0) for each in matching) / times)
            if number > 0:
                kind[without_closures(caller.name)] += number
    return found


def in_order(calls: Calls) -> Iterator[Function]:
    """Each function once: callers before what they call, and that in the order of the caller's code."""
    called = {each for found in calls.edges.values() for each in found}
    seen: set[Function] = set()
    for root in [*(each for each in calls.edges if each not in called), *calls.edges]:
        waiting = [root]
        while waiting:
            function = waiting.pop()
            if function not in seen:
                seen.add(function)
                yield function
                waiting += reversed(calls.edges.get(function, {}))


# --- the trace ---


def build(folder: Path) -> None:
    """Compiles the core, and makes a package of it and of the tree's Python files in the folder."""
    command = ["cargo", "build", "--locked", "--quiet", "-p", "tailrace-wsgi", "--target-dir", str(TARGET)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **PROFILE, "PYO3_PYTHON": str(PYTHON)}, check=True)
    package = folder / "tailrace"
    package.mkdir()
    for each in (ROOT / "tailrace").iterdir():
        if each.suffix != ".so":
            (package / each.name).symlink_to(each)
    (package / "_tailrace.abi3.so").symlink_to(TARGET / "debug/lib_tailrace.so")
    (folder / "small.py").write_text(APPLICATION)


class Server:
    """A server with one worker and one thread under callgrind, which counts only when it is asked to."""

    def __init__(self, folder: Path, valgrind: str) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.dumps = 0
        self.control = str(Path(valgrind).with_name("vgdb"))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            command = [
                *(
                    valgrind,
                    "--tool=callgrind",
                    "--trace-children=yes",
                    "--instr-atstart=no",
                    "--compress-strings=no",
                    "--compress-pos=no",
                ),
                *("--quiet", f"--callgrind-out-file={folder}/calls.%p", f"--vgdb-prefix={folder}/vgdb"),
                *(str(PYTHON), "-m", "tailrace", "small:application", "--workers", "1", "--threads", "1"),
                *("--bind", f"fd://{listener.fileno()}"),
            ]
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(folder)},
                pass_fds=[listener.fileno()],
                stderr=self.log.open("w"),
            )

    def worker(self) -> int:
        """Its process id. Once a request was answered, the master has forked it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def tell(self, *words: str) -> None:
        """A monitor command of callgrind, to the worker."""
        command = [self.control, f"--pid={self.worker()}", f"--vgdb-prefix={self.folder}/vgdb", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def calls(self, blocks: int) -> Calls:
        """Those of many requests on one connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        get(connection, blocks, 3)
        self.tell("instrumentation", "on")
        get(connection, blocks, 3)
        self.tell("zero")
        get(connection, blocks, REQUESTS)
        self.tell("dump")
        self.tell("instrumentation", "off")
        connection.close()
        self.dumps += 1
        return parse((self.folder / f"calls.{self.worker()}.{self.dumps}").read_text())

    def stop(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait()


def get(connection: http.client.HTTPConnection, blocks: int, times: int) -> None:
    """Requests on a connection, one after the other."""
    for _ in range(times):
        connection.request("GET", f"/?{blocks or ''}")
        connection.getresponse().read()


# --- the output ---

HEADINGS: Final = ("", "files", "functions", "closures", "locks", "atomic operations", "Arc clones")


def table(rows: Mapping[str, Passed]) -> str:
    """In Markdown."""
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    lines += [f"| {name} | {' | '.join(map(str, found.row()))} |" for name, found in rows.items()]
    return "\n".join(lines)


def listing(name: str, found: Passed) -> str:
    """Its files and functions in order, each with what it does for other threads."""
    lines = [f"\n{name}:"]
    file = ""
    for function in found.functions:
        if source(function) != file:
            file = source(function)
            lines.append(file)
        kinds = (("lock", found.locks), ("atomic", found.atomics), ("reference", found.references))
        counts = [f"{kind} {numbers[function.name]}" for kind, numbers in kinds if numbers[function.name]]
        lines.append(f"    {function.name}" + (f"  ({', '.join(counts)})" if counts else ""))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Prints what is counted."""
    parser = argparse.ArgumentParser(description="Counts what one GET and one block pass in the crates, from a trace.")
    parser.add_argument("--list", action="store_true", help="print each file and function as well")
    options = parser.parse_args(arguments)
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        print("request_path.py: Valgrind is missing: apt-get install valgrind", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        server = Server(folder, valgrind)
        try:
            small, few, many = (server.calls(blocks) for blocks in (0, *BLOCKS))
        except (OSError, subprocess.CalledProcessError):
            print(server.log.read_text(), file=sys.stderr)
            raise
        finally:
            server.stop()
    rows = {
        "one GET": passed(small, REQUESTS),
        "one block": passed(many, REQUESTS * (BLOCKS[1] - BLOCKS[0]), few),
    }
    print(table(rows))
    if options.list:
        for name, found in rows.items():
            print(listing(name, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
