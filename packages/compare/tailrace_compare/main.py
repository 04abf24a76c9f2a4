"""The command: checks the choice and the tools, runs the experiments, and writes the reports after each."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tailrace.errors import ConfigError
from tailrace.system.signals import handled
from tailrace_compare import machine, noise, own, peers, report, resume, rounds, scenarios, strace
from tailrace_compare.peers import Peer
from tailrace_compare.progress import Progress, shown
from tailrace_compare.results import Column
from tailrace_compare.resume import Earlier
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.scenarios.syscalls import Syscalls
from tailrace_compare.served import files

OUTPUT = Path("comparison")
# Tools by their Debian packages.
PACKAGES = {"curl": "curl", "taskset": "util-linux", "strace": "strace", "wrk": "wrk"}
ROUNDS, QUICK_ROUNDS = 5, 1
MINUTES, QUICK_MINUTES = 60.0, 1.6
QUICK_SERVERS = ("tailrace", "gunicorn gthread", "granian", "uwsgi http", "fastwsgi")
# Number of servers with several URLs, all of which are measured.
QUICK_SERVERS_OF_URLS = 3
QUICK_EXPERIMENTS = ("flask_c16", "django_c16", "pong_c64", "list_c4", "words", "blocks_c64", "sleep_c100", "startup")
# Requirements of the command itself and of its applications: `pip install 'tailrace[compare]'`.
OF_THIS_ENVIRONMENT = ("django", "flask", "rich")
# Modules of `served` that need a framework.
FRAMEWORKS = {"served.flask_hello": "flask", "served.django_hello": "django"}


@dataclass(frozen=True)
class Asked:
    """The options of the command; empty means all."""

    app: str | None = None
    urls: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    quick: bool = False
    rounds: int | None = None
    seconds: float = 1.0
    minutes: float | None = None
    output: Path = OUTPUT
    fresh: bool = False

    def effective_rounds(self) -> int:
        return self.rounds or (QUICK_ROUNDS if self.quick else ROUNDS)

    def effective_minutes(self) -> float:
        return self.minutes or (QUICK_MINUTES if self.quick else MINUTES)

    def options(self) -> dict[str, Any]:
        """The options that decide what is measured."""
        return {
            "application": self.app or "",
            "directory": Path.cwd() if self.app else "",
            "url": self.urls,
            "only": self.only,
            "servers": self.servers,
            "quick": self.quick,
            "rounds": self.effective_rounds(),
            "seconds": self.seconds,
            "minutes": self.effective_minutes(),
        }

    def command(self) -> str:
        """The equivalent command line."""
        words = ["tailrace", "compare", *([self.app] if self.app else [])]
        words += [word for url in self.urls for word in ("--url", url)]
        for option, names in (("--only", self.only), ("--servers", self.servers)):
            words += [option, ",".join(names)] if names else []
        words += ["--quick"] if self.quick else []
        words += ["--rounds", str(self.rounds)] if self.rounds else []
        words += ["--seconds", f"{self.seconds:g}"] if self.seconds != 1.0 else []
        words += ["--minutes", f"{self.minutes:g}"] if self.minutes else []
        return shlex.join(words)

    @property
    def results(self) -> Path:
        return self.output / "results.json"


def listing() -> str:
    """The experiments and the servers, for --list."""
    wide = max(len(scenario.name) for scenario in scenarios.SCENARIOS)
    lines = ["Experiments:"]
    for scenario in scenarios.SCENARIOS:
        asked = " (only with --only)" if scenario.asked else ""
        lines.append(f"  {scenario.name:{wide}}  {scenario.title}{asked}")
    lines += [f"  {name:{wide}}  the whole group: {group}" for name, group in scenarios.GROUPS.items()]
    lines += ["", f"Experiments with your own application: {', '.join(own.KINDS)}"]
    wide = max(len(peer.name) for peer in peers.PEERS)
    lines += ["", "Servers:"]
    lines += [f"  {peer.name:{wide}}  {peer.version() or 'not installed'}" for peer in peers.PEERS]
    return "\n".join(lines)


def install() -> int:
    """Installs the servers one by one, so that a failed build does not affect the others. They get a separate
    environment, because this one may need other versions. Returns the exit status."""
    failed = []
    home = peers.environment()
    python = str(peers.commands(home) / "python")
    try:
        venv.create(home, symlinks=True)
        # While pip runs, this environment is not in the search path of the new one, so pip ignores its packages.
        link = peers.packages(home) / "tailrace_compare.pth"
        link.unlink(missing_ok=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"cannot create the environment {home}: {error}; set XDG_CACHE_HOME") from None
    print(f"installing into {home}", file=sys.stderr)
    for line in Path(__file__).with_name("requirements.txt").read_text().splitlines():
        requirement = line.partition("  #")[0].strip()
        if requirement and not requirement.startswith("#") and requirement not in OF_THIS_ENVIRONMENT:
            print(f"pip install {shlex.quote(requirement)}", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--upgrade", requirement]
            if subprocess.run(command, check=False).returncode:
                failed.append(requirement)
    # The application is in this environment. `addsitedir` also reads the .pth files there.
    there = [path for path in dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib"))) if path]
    link.write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in there))
    if failed:
        print(f"not installed: {', '.join(failed)}", file=sys.stderr)
        print("building bjoern needs libev-dev, mod_wsgi apache2-dev, and uwsgi gcc (Debian packages)", file=sys.stderr)
    return 0


def render(output: Path) -> Path:
    """Writes the reports of results.json again. Raises ConfigError."""
    document, path = stored(output)
    with readable(path):
        return report.render(document, path)


def draw(output: Path, drawing: Path) -> None:
    """Writes the README's chart. Raises ConfigError."""
    document, path = stored(output)
    with readable(path):
        report.draw(document, drawing)


def stored(output: Path) -> tuple[dict[str, Any], Path]:
    """The content of results.json, and its path. Raises ConfigError."""
    path = output / "results.json"
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; run `tailrace compare` first, or name its --output") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"cannot read {path}: not a JSON object")
    return document, path


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raises ConfigError if a report of this file cannot be made or written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write the reports: {error.filename or path.parent}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ConfigError(f"cannot create a report from {path}: {type(error).__name__}: {error}") from None


def need_writable(output: Path) -> None:
    """Raises ConfigError if results cannot be written, before any experiment has run."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}") from None


def run(asked: Asked) -> int:
    """Measures, and prints a table for each figure. Returns the exit status; an interruption prints how to continue.

    Raises ConfigError for a missing or unknown choice, before anything is started.
    """
    servers = chosen_servers(asked)
    app = own.application(asked.app) if asked.app else None
    targets = tuple(dict.fromkeys(map(own.target, asked.urls or ("/",))))
    if asked.urls and app is None:
        raise ConfigError("--url needs an application: tailrace compare mysite.wsgi:application --url /report")
    if app:
        own.kinds(asked.only)
        chosen = own.experiments(app, Path.cwd(), dict.fromkeys(targets), asked.only)
    else:
        chosen = chosen_experiments(asked)
    need_tools(chosen)
    chosen = traceable(asked, chosen)
    need_writable(asked.output)
    identity = resume.identity(asked.options(), servers)
    earlier, told = (Earlier(), "") if asked.fresh else resume.earlier(asked.results, chosen, identity)
    if told:
        print(told, file=sys.stderr)
    interrupt = Interrupt()
    with handled({signal.SIGINT: interrupt, signal.SIGTERM: interrupt}):
        facts = machine.facts()
        machine.take_load_core()
        if app:
            surveys = own.survey(app, Path.cwd(), targets, servers)
            for target, surveyed in surveys.items():
                print(surveyed.told(target), file=sys.stderr)
                facts[f"the response to {target}"] = surveyed.told(target).partition(": ")[2]
            chosen = own.experiments(app, Path.cwd(), surveys, asked.only)
        else:
            files.make()
        return measure(Session(asked, servers, chosen, facts, identity, earlier, interrupt))


@dataclass
class Session:
    """A run, and its results so far."""

    asked: Asked
    servers: tuple[Peer, ...]
    chosen: tuple[Scenario, ...]
    facts: dict[str, str]
    identity: dict[str, dict[str, str]]
    so_far: Earlier
    interrupt: Interrupt

    def __post_init__(self) -> None:
        self.begun = time.perf_counter()
        self.minutes_before = self.so_far.minutes
        self.not_measured: list[Scenario] = []

    def minutes(self) -> float:
        return self.minutes_before + (time.perf_counter() - self.begun) / 60

    def ends(self) -> float:
        return self.begun + 60 * (self.asked.effective_minutes() - self.minutes_before)

    def left(self) -> list[Scenario]:
        return [scenario for scenario in self.chosen if scenario.name not in self.so_far.finished]

    def document(self, complete: bool) -> dict[str, Any]:
        """The content of results.json."""
        asked = {
            "command": self.asked.command(),
            "rounds": self.asked.effective_rounds(),
            "seconds": self.asked.seconds,
        }
        made = report.document(self.so_far.columns, asked, self.facts, self.minutes(), self.chosen)
        made["not_measured"] = [scenario.title for scenario in self.not_measured]
        made["noise"] = noise.as_json(self.so_far.looks)
        made["run"] = {"complete": complete, "finished": self.so_far.finished, "identity": self.identity}
        return made

    def save(self, complete: bool) -> Path:
        return report.write(self.document(complete), self.asked.results)


def measure(session: Session) -> int:
    """Runs the experiments that are left."""
    left = session.left()
    try:
        with shown(len(session.chosen)) as progress:
            for at, scenario in enumerate(left):
                if time.perf_counter() > session.ends():
                    session.not_measured = left[at:]
                    break
                until = time.perf_counter() + share(session.ends() - time.perf_counter(), left[at:], session.servers)
                progress.experiment(len(session.chosen) - len(left) + at + 1, scenario.title)
                found = play(session, scenario, progress, until)
                session.interrupt.check()
                session.so_far.columns |= found
                session.so_far.finished.append(scenario.name)
                session.save(complete=False)
                ranked = not noise.judge(session.so_far.looks).refused
                for column in found.values():
                    print(report.terminal(column, ranked) + "\n", flush=True)
    except KeyboardInterrupt:
        finished, count = len(session.so_far.finished), len(session.chosen)
        kept = f"{finished} of {count} experiments are in {session.asked.results}; run the same command to continue"
        print(f"\ninterrupted: {kept if finished else 'no experiment has finished'}", file=sys.stderr)
        raise
    if session.not_measured:
        names = ", ".join(scenario.name for scenario in session.not_measured)
        print(f"not measured for lack of time (see --minutes): {names}", file=sys.stderr)
    session.so_far.looks.append(noise.look("the end"))
    made = session.save(complete=True)
    summary(session, made)
    return 0


def share(seconds: float, left: Sequence[Scenario], servers: Sequence[Peer]) -> float:
    """The seconds for the first of these experiments. An experiment with more servers gets more of the time."""
    weights = [sum(rounds.admits(scenario, peer) for peer in servers) for scenario in left]
    return seconds * weights[0] / max(1, sum(weights))


def play(session: Session, scenario: Scenario, progress: Progress, until: float) -> dict[str, Column]:
    """Runs one experiment after checking the noise of the machine. Rounds end before `until`."""
    session.so_far.looks.append(noise.look(scenario.name))
    asked = session.asked

    def step(text: str) -> None:
        session.interrupt.check()
        progress.step(text)

    contest = rounds.Contest(scenario, session.servers, Ask(asked.seconds, asked.quick), step)
    wanted = asked.effective_rounds()
    return contest.run(min(wanted, scenario.rounds or wanted), until)


def summary(session: Session, made: Path) -> None:
    """The last lines."""
    verdict = noise.judge(session.so_far.looks)
    if verdict.refused:
        print(f"No ranking. {verdict.reason}")
    elif goals := report.goals_terminal(session.so_far.columns):
        print(f"Goals\n{goals}\n")
    if not verdict.refused and session.asked.effective_rounds() == 1:
        print(f"Note: {report.ONE_ROUND}.")
    print(session.asked.results)
    print(made)


def chosen_servers(asked: Asked) -> tuple[Peer, ...]:
    """The named servers, or all that are installed. Raises ConfigError."""
    quick = QUICK_SERVERS if len(asked.urls) < 2 else QUICK_SERVERS[:QUICK_SERVERS_OF_URLS]
    names = asked.servers or (quick if asked.quick else ())
    try:
        rows = peers.by_name(list(names)) if names else peers.PEERS
    except ValueError as error:
        raise ConfigError(f"--servers: {error}") from None
    if not asked.servers and asked.quick:
        rows = tuple(peer for peer in rows if not peer.of)
    if asked.app:
        rows = tuple(peer for peer in rows if peer.name != peers.VIEW)
    missing = [peer.name for peer in rows if peer.version() is None]
    if missing and asked.servers:
        raise ConfigError(f"not installed: {', '.join(missing)}; `tailrace compare --install` installs all servers")
    if missing:
        left_out = [peer.name for peer in rows if peer.name in missing and not peer.of]
        print(f"skipped, not installed: {', '.join(left_out)}", file=sys.stderr)
    return tuple(peer for peer in rows if peer.name not in missing)


def chosen_experiments(asked: Asked) -> tuple[Scenario, ...]:
    """The named experiments, or the usual ones. Raises ConfigError."""
    try:
        chosen = scenarios.by_name(list(asked.only)) if asked.only else scenarios.usual()
    except ValueError as error:
        raise ConfigError(f"--only: {error}") from None
    if asked.quick and not asked.only:
        chosen = tuple(scenario for scenario in chosen if scenario.name in QUICK_EXPERIMENTS)
    lacking = {
        scenario.name: framework
        for scenario in chosen
        if (framework := FRAMEWORKS.get(scenario.app.partition(":")[0])) and not importlib.util.find_spec(framework)
    }
    if lacking:
        packages = " ".join(sorted(set(lacking.values())))
        said = f"{', '.join(lacking)}: needs {packages}; pip install 'tailrace[compare]'"
        if asked.only:
            raise ConfigError(said)
        print(f"not measured: {said}", file=sys.stderr)
    return tuple(scenario for scenario in chosen if scenario.name not in lacking)


def traceable(asked: Asked, chosen: tuple[Scenario, ...]) -> tuple[Scenario, ...]:
    """Removes the experiments that need strace if it may not attach to servers. Raises ConfigError if they were
    named."""
    counting = [scenario.name for scenario in chosen if isinstance(scenario, Syscalls)]
    if not counting or not (why := strace.hindrance()):
        return chosen
    said = f"{', '.join(counting)}: {why}; run as root, or set kernel.yama.ptrace_scope to 0"
    if asked.only:
        raise ConfigError(said)
    print(f"not measured: {said}", file=sys.stderr)
    return tuple(scenario for scenario in chosen if scenario.name not in counting)


def need_tools(chosen: Iterable[Scenario]) -> None:
    """Raises ConfigError for missing tools, and names the packages that contain them."""
    needed = ["curl", "taskset", "wrk"]
    if any(isinstance(scenario, Syscalls) for scenario in chosen):
        needed.append("strace")
    missing = [tool for tool in needed if shutil.which(tool) is None]
    if missing:
        packages = " ".join(PACKAGES[tool] for tool in missing)
        raise ConfigError(f"`tailrace compare` needs {', '.join(missing)}: sudo apt-get install {packages}")


class Interrupt:
    """Handler of SIGINT and SIGTERM: ends the run, stops the servers, and keeps finished experiments."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raises it again: Python drops an exception that is raised in a finalizer or a fork hook."""
        if self.asked:
            raise KeyboardInterrupt
