"""The benchmark's command line.

tailrace compare                                     everything, under 40 minutes
tailrace compare --quick --peers tailrace,fastwsgi   a look, under 3 minutes
tailrace compare --only pong_c64,flask_c16 --rounds 5 --seconds 3
tailrace compare --only frameworks --rounds 12 --minutes 60
tailrace compare list | install | report | chart
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tailrace.compare import machine, peers, report, scenarios
from tailrace.compare.results import Column
from tailrace.compare.rounds import Contest
from tailrace.compare.scenarios.scenario import Ask, Scenario
from tailrace.compare.served import files

RESULTS = Path("comparison/latest.json")
CHART = Path("docs/images/shapes.svg")
TOOLS = ("wrk", "curl", "strace", "taskset")
QUICK_PEERS = ["tailrace", "gthread", "granian", "fastwsgi"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tailrace compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", nargs="?", default="run", choices=["run", "list", "install", "report", "chart"])
    parser.add_argument("--only", metavar="NAMES", help="scenarios, separated by commas (see `list`)")
    parser.add_argument("--peers", metavar="NAMES", help="servers, separated by commas; a word of a name is enough")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (5; 1 with --quick)")
    parser.add_argument("--seconds", type=float, help="load in a round (1); wrk counts whole seconds")
    parser.add_argument("--minutes", type=float, help="no round begins that would end later (38; 2.5 with --quick)")
    parser.add_argument("--quick", action="store_true", help=f"one round of {', '.join(QUICK_PEERS)}")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help=f"the JSON file ({RESULTS}); the report is beside it"
    )
    parser.add_argument("--chart", type=Path, default=CHART, help=f"the chart that `chart` writes ({CHART})")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    if asked.task == "list":
        for scenario in scenarios.SCENARIOS:
            print(f"{scenario.name:20} {scenario.title}{' (if asked for)' if scenario.asked else ''}")
        return 0
    if asked.task == "install":
        return install()
    if asked.task == "report":
        print(report.write(json.loads(asked.output.read_text()), asked.output))
        return 0
    if asked.task == "chart":
        report.draw(json.loads(asked.output.read_text()), asked.chart)
        print(asked.chart)
        return 0
    return run(asked)


def install() -> int:
    """Installs the peers one by one: one that does not build leaves the others alone, and is missing in the tables."""
    failed = []
    for line in Path(__file__).with_name("requirements.txt").read_text().splitlines():
        requirement = line.partition("#")[0].strip()
        if requirement:
            command = [sys.executable, "-m", "pip", "install", "--quiet", requirement]
            if subprocess.run(command, check=False).returncode:
                failed.append(requirement)
    if failed:
        print(f"not installed: {', '.join(failed)}", file=sys.stderr)
    return 0


def run(asked: argparse.Namespace) -> int:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        print(f"the benchmark needs {', '.join(missing)}", file=sys.stderr)
        return 2
    try:
        chosen = scenarios.by_name(asked.only.split(",")) if asked.only else scenarios.usual()
        wanted = asked.peers.split(",") if asked.peers else QUICK_PEERS if asked.quick else None
        servers = peers.by_name(wanted) if wanted else peers.PEERS
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    rounds = asked.rounds or (1 if asked.quick else 5)
    seconds = asked.seconds or 1.0
    limit = 60 * (asked.minutes or (2.5 if asked.quick else 38))
    facts = machine.facts()
    machine.take_load_core()
    files.make()
    begun = time.perf_counter()
    what = {"command": shlex.join(["tailrace", "compare", *sys.argv[1:]]), "rounds": rounds, "seconds": seconds}
    columns: dict[str, Column] = {}
    for found in play(chosen, servers, rounds, Ask(seconds, asked.quick), begun + limit):
        columns |= found
        # After each scenario, so that a run that is interrupted has been worth its time.
        report.write(report.document(columns, what, facts, (time.perf_counter() - begun) / 60), asked.output)
    print(f"Goals\n{report.goals_terminal(columns)}\n")
    print(f"{asked.output}\n{asked.output.with_suffix('.md')}")
    return 0


def play(
    chosen: tuple[Scenario, ...], servers: tuple[peers.Peer, ...], rounds: int, ask: Ask, end: float
) -> Iterator[dict[str, Column]]:
    """Every scenario, each with its share of the time that is left, until there is none."""
    for at, scenario in enumerate(chosen):
        head = f"[{at + 1}/{len(chosen)}] {scenario.title}"

        def progress(text: str, head: str = head) -> None:
            if sys.stderr.isatty():
                print(f"\r\x1b[K{head}: {text}", end="", file=sys.stderr, flush=True)
            else:
                print(f"{head}: {text}", file=sys.stderr, flush=True)

        now = time.perf_counter()
        if now > end:
            print(f"out of time, not measured: {', '.join(left.name for left in chosen[at:])}", flush=True)
            break
        until = now + (end - now) / (len(chosen) - at)
        found = Contest(scenario, servers, ask, progress).run(min(rounds, scenario.rounds or rounds), until)
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        for column in found.values():
            print(report.terminal(column) + "\n", flush=True)
        yield found
