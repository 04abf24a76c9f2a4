"""What a web server before Tailrace costs: the same small response, straight and through each front of deploy/.

python -m bench.fronts [--rounds 8] [--seconds 1]

Front and Tailrace share one core, the load has the other one. The time of a request is the processor time that both of
them use for it, and the difference to a request without a front is what the hop costs. Every way has its turn in each
round; a figure is the median of its rounds, and a ratio or difference that of those within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tailrace_compare import load, machine
from tailrace_compare.work import Work

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness import fronts  # noqa: E402 - the path of the tests
from harness.addresses import Address, free_address  # noqa: E402
from harness.fronts import Upstream  # noqa: E402

TARGET = "/pong"
CONNECTIONS = 16
# A front that does not listen by then (seconds) is left out.
PATIENCE = 20.0
PATH = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin:/usr/local/bin"
WAYS = [
    (front, protocol, way)
    for front, protocol in (
        *(("nginx", "http"), ("haproxy", "http"), ("apache", "http")),
        *(("nginx", "uwsgi"), ("apache", "uwsgi")),
    )
    for way in ("tcp", "unix")
]


class Way(NamedTuple):
    """A URL, and the processes that answer there with their children."""

    url: str
    processes: tuple[int, ...]

    def processor(self) -> float:
        """The processor time that they have used (seconds)."""
        return sum(map(processor, self.processes))


class Turn(NamedTuple):
    """Requests per second, and the processor time of each (seconds)."""

    rate: float
    each: float


def processor(pid: int) -> float:
    """The processor time of a process and of its children that live (seconds)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor(int(child)) for child in children)


@contextlib.contextmanager
def running(command: list[str], address: Address, directory: Path) -> Iterator[int]:
    """A process on the server's core, once it listens; its number. Raises OSError when it does not."""
    with (directory / "output").open("wb") as output:
        line = ["taskset", "-c", str(machine.SERVER_CORE), *command]
        process = subprocess.Popen(line, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                address.connect().close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise OSError(f"{command[0]}: {(directory / 'output').read_text()[-300:]}") from None
                time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE)


@contextlib.contextmanager
def everything() -> Iterator[dict[str, Way]]:
    """Tailrace and all fronts, by name."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tr-")))
        # Apache's children are another user.
        root.chmod(0o755)
        listen = {
            (protocol, way): free_address() if way == "tcp" else Address(path=str(root / protocol))
            for _, protocol, way in WAYS
        }
        status, agent = free_address(), free_address()
        binds = [text for (protocol, _), each in listen.items() for text in ("--bind", fronts.bind(protocol, each))]
        command = [sys.executable, "-m", "tailrace", str(ROOT / "examples" / "seeds.py"), *binds]
        command += [
            "--trusted-proxies",
            "unix,127.0.0.1",
            "--status",
            status.bind,
            "--haproxy-agent",
            agent.bind,
        ]
        direct = listen["http", "tcp"]
        server = stack.enter_context(running(command, direct, root))
        found = {"no front": Way(direct.url, (server,))}
        for front, protocol, way in WAYS:
            address = free_address()
            made = getattr(fronts, front)(address, Upstream(protocol, listen[protocol, way], status, agent))
            executable = shutil.which(made.executable, path=PATH)
            if executable is None:
                print(f"{made.executable} is not installed", file=sys.stderr)
                continue
            directory = root / f"{front}-{protocol}-{way}"
            directory.mkdir()
            for name, text in made.files.items():
                (directory / name).write_text(text.replace("{directory}", str(directory)))
            arguments = [each.replace("{directory}", str(directory)) for each in made.arguments]
            process = stack.enter_context(running([executable, *arguments], address, directory))
            found[f"{made.executable}, {protocol} over {way.upper()}"] = Way(address.url, (server, process))
        yield found


def measured(ways: dict[str, Way], rounds: int, seconds: float) -> dict[str, list[Turn]]:
    """The turns of each way, one in each round."""
    turns: dict[str, list[Turn]] = {name: [] for name in ways}
    for way in ways.values():
        load.run(Work(way.url + TARGET, CONNECTIONS, 1, machine.LOAD_CORE))
    for _ in range(rounds):
        for name, way in ways.items():
            before = way.processor()
            done = load.run(Work(way.url + TARGET, CONNECTIONS, seconds, machine.LOAD_CORE))
            if done.errors:
                raise SystemExit(f"{name}: {done.errors} errors: {done.detail}")
            turns[name].append(Turn(done.rate, (way.processor() - before) / done.answers))
    return turns


def table(turns: dict[str, list[Turn]]) -> str:
    """The figures in Markdown: rate, ratio, processor time of a request, and of that the hop (microseconds)."""
    direct = next(iter(turns.values()))
    lines = ["| way | requests/s | of those without | µs of processor | of it the hop |", "|---|---|---|---|---|"]
    for name, found in turns.items():
        pairs = list(zip(found, direct, strict=True))
        rate = statistics.median(turn.rate for turn in found)
        ratio = statistics.median(turn.rate / other.rate for turn, other in pairs)
        each = statistics.median(turn.each for turn in found) * 1e6
        hop = statistics.median(turn.each - other.each for turn, other in pairs) * 1e6
        lines.append(f"| {name} | {rate:,.0f} | {ratio:.2f} | {each:.0f} | {hop:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fronts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn; wrk counts whole seconds")
    given = parser.parse_args()
    with everything() as ways:
        print(table(measured(ways, given.rounds, given.seconds)))
    for name, fact in machine.facts().items():
        print(f"{name}: {fact}")


if __name__ == "__main__":
    main()
