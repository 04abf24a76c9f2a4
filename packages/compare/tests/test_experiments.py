"""Every experiment catches a bad server and says what is wrong with it, and lets the same server pass without a fault.

The servers are those of bad_server.py, started as peers are and measured by a contest of one round with a small load.
"""

import importlib
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from harness.addresses import free_address
from tailrace_compare import checks, launch, scenarios
from tailrace_compare.peers import Peer
from tailrace_compare.results import Cell, Column
from tailrace_compare.rounds import Contest
from tailrace_compare.scenarios import processes
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.served import files

# A server that is asked before it listens on its UNIX socket leaves the client's end to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket fd=.*family=1:pytest.PytestUnraisableExceptionWarning"
)

# In the package, these names are functions.
carried = importlib.import_module("tailrace_compare.scenarios.carried")
crowded = importlib.import_module("tailrace_compare.scenarios.crowded")
BAD_SERVER = Path(__file__).with_name("bad_server.py")
TABLE = {scenario.name: scenario for scenario in scenarios.SCENARIOS}

# What bad_server.py wastes, and how long it starts and holds blocks, less what a clock may round.
WASTED_BYTES = 0.9 * (4 << 20)
WASTED_PROCESS_MIB = 15
# Of one connection: on a busy machine, few of the clients have come when the memory is read. Without the fault it is 1.
WASTED_CROWD_MIB = 3
SLOW_START_MS = 1500
HELD_MS = 399


@dataclass(frozen=True)
class Experiment:
    """A row of the table of scenarios, with less load. `patient`: what it has for a server without a fault, which
    must pass on a busy machine too."""

    name: str
    smaller: dict[str, Any]
    patient: dict[str, Any]
    needs: tuple[str, ...] = ()
    seconds: float = 0.1

    def scenario(self, good: bool) -> Scenario:
        changes = {**self.smaller, **(self.patient if good else {})}
        return replace(TABLE[self.name], among=(), flags=(), nginx=None, generator=None, rounds=1, **changes)


def row(
    name: str,
    *,
    needs: tuple[str, ...] = (),
    patient: dict[str, Any] | None = None,
    seconds: float = 0.1,
    **smaller: Any,
) -> Experiment:
    return Experiment(name, smaller, patient or {}, needs, seconds)


EXPERIMENTS = {
    each.name: each
    for each in (
        row("everyday_flask_page", needs=("flask",), connections=8),
        row("everyday_django_upload", needs=("django",), connections=8),
        row("mix", needs=("flask",), connections=8),
        row("flask_c16", needs=("flask",), connections=8),
        row("pong_c64", connections=8),
        row("connections", connections=8),
        row("segments"),
        row("static_page", connections=8),
        row("page_c16", connections=8),
        row("list_discard"),
        row("upload", needs=("curl",)),
        *(row(f"{shape}_100k", needs=("curl",)) for shape in ("bare", "list", "file", "wrapper", "blocks", "small")),
        row("bytes_100k", needs=("curl",)),
        row("words", needs=("curl",), sizes=(8192,), metrics=TABLE["words"].metrics[:2]),
        row("words_unix", needs=("curl",), sizes=(8192,), metrics=TABLE["words_unix"].metrics[:2]),
        row("words_front", needs=("curl", "nginx"), sizes=(8192,), metrics=TABLE["words_front"].metrics[:2]),
        row("blocks_c64", connections=8),
        # A page that takes a while, so that a small rate is a load.
        row(
            "steady_read", app="served.shapes:sleep", path="/", rates=(40, 60), metrics=TABLE["steady_read"].metrics[:4]
        ),
        row("delay", blocks=2, patience=0.2, patient={"patience": 5.0}),
        row("late"),
        row("sleep_c8"),
        row("gevent_c10"),
        row("streams", clients=8, seconds=0.6),
        row("growth", needs=("curl",)),
        row("overload", times=0.5),
        row("processes", app="served.shapes:hello"),
        row("crowd_list", clients=6, crowd_path="/list"),
        row("crowd_upload", clients=6, pace=1_000_000, size=100_000),
        row("crowd_both", clients=24, pace=1_000_000, size="10000000,100000"),
        row("flat_generator", path=f"/generator?{128 << 20}", size=128 << 20),
        row("calls", needs=("strace",), requests=80),
        row("idle", connections=40),
        row("startup"),
    )
}
# These answer with stamps, of which no byte is known beforehand.
STAMPED = {"delay", "late"}


@pytest.fixture(scope="module", autouse=True)
def _files() -> None:
    files.make()


@pytest.fixture(autouse=True)
def _ports(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (launch, carried):
        monkeypatch.setattr(module, "free_port", lambda: free_address().port)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowded, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(crowded, "ALONE", 1)
    monkeypatch.setattr(crowded, "CROWDED", 1)


def bad(*faults: str) -> Peer:
    """The server with these faults, as a row of the table of servers."""
    command = f"{{bin}}/python {BAD_SERVER} {{app}} %s{''.join(f' --fault {fault}' for fault in faults)}"
    return Peer("bad", "tailrace", command % "{host}:{port}", "", unix=command % "unix:{socket}")


def measured(name: str, *faults: str) -> dict[str, Column]:
    experiment = EXPERIMENTS[name]
    for need in experiment.needs:
        if need in ("flask", "django"):
            pytest.importorskip(need)
        elif shutil.which(need, path="/usr/bin:/usr/sbin:/bin:/sbin:/usr/local/bin") is None:
            pytest.skip(f"no {need}")
    contest = Contest(
        experiment.scenario(not faults), (bad(*faults),), Ask(experiment.seconds, quick=True), lambda text: None
    )
    return contest.run(1, math.inf)


def cells(columns: dict[str, Column]) -> list[Cell]:
    return [column.cells["bad"] for column in columns.values()]


def said(columns: dict[str, Column]) -> str:
    return "; ".join(dict.fromkeys(note for cell in cells(columns) for note in cell.notes))


@pytest.mark.nightly
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_server_without_a_fault_passes(name: str) -> None:
    columns = measured(name)
    # A block that a busy machine makes late counts as missed, and nothing else is an error.
    late = columns["streams_missed"].figure("bad") if name == "streams" else 0
    assert {cell.errors for cell in cells(columns)} == {late}, said(columns)
    assert "disqualified" not in said(columns)
    missing = {column.metric.key for column in columns.values() if column.figure("bad") is None}
    # No refusals, and nothing that waits longer than it should.
    assert missing <= {"overload_refusal"}, said(columns)


# Faults on the wire that all experiments meet, and the sentence for each. test_checks.py has the others.
WIRE = {
    "truncate": "body is 1 byte short of its Content-Length|the connection ends .*, without a last chunk",
    "drop-fields": "header field Content-Type, which the application set, is missing",
    "wrong-bytes": "body differs from the application's at byte 0 of",
}
# Those whose answer has no end that is read.
ENDLESS = {"streams", "flat_generator"}
WRONG = [
    pytest.param(name, fault, id=f"{name}-{fault}")
    # Of growth the answer to /ready is checked, for which the server has no fault.
    for name in EXPERIMENTS
    if name != "growth"
    for fault in WIRE
    if not ((name in STAMPED and fault != "drop-fields") or (name in ENDLESS and fault == "truncate"))
]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "fault"), WRONG)
def test_a_wrong_answer_disqualifies(name: str, fault: str) -> None:
    columns = measured(name, fault)
    assert re.search(f"disqualified: ({WIRE[fault]})", said(columns)), said(columns)
    assert all(column.figure("bad") is None for column in columns.values())
    assert all(cell.errors for cell in cells(columns))


Figures = dict[str, float]
LATENCIES = {"everyday_flask_page_p50", "everyday_flask_page_p99"}
# What an experiment measures: the fault, and a note or a figure that tells of it. None of these figures can be that of
# a server without the fault, however busy the machine is.
CAUGHT: list[tuple[str, str, str | Callable[[Figures], bool]]] = [
    ("everyday_flask_page", "drop-under-load", "[0-9]+ read"),
    ("everyday_flask_page", "errors-under-load", "[0-9]+ status"),
    ("everyday_flask_page", "serves-few", lambda found: found.keys() & LATENCIES == set()),
    ("everyday_flask_page", "byte-by-byte", lambda found: found.keys() >= LATENCIES),
    ("everyday_django_upload", "drop-under-load", "[0-9]+ (read|write)"),
    ("mix", "drop-under-load", "[0-9]+ read"),
    ("mix", "errors-under-load", "[0-9]+ status"),
    ("mix", "delay-each", lambda found: found["mix_p99"] >= HELD_MS),
    ("flask_c16", "drop-under-load", "[0-9]+ read"),
    ("pong_c64", "drop-under-load", "[0-9]+ read"),
    ("pong_c64", "errors-under-load", "[0-9]+ status"),
    ("pong_c64", "never-answers", "no response within"),
    ("connections", "drop-under-load", "[0-9]+ read"),
    ("connections", "keeps-open", "disqualified: the server announces that it closes"),
    ("static_page", "errors-under-load", "[0-9]+ status"),
    ("page_c16", "drop-under-load", "[0-9]+ read"),
    ("blocks_c64", "drop-under-load", "[0-9]+ read"),
    ("segments", "split-head", lambda found: found["segments"] >= 15),
    ("segments", "byte-by-byte", lambda found: found["segments"] >= 10),
    ("list_discard", "drop-under-load", lambda found: found["errors"] >= 1),
    ("list_discard", "errors-under-load", lambda found: found["errors"] >= 1),
    ("list_100k", "delay-each", lambda found: found["list_100k"] >= HELD_MS),
    ("upload", "delay-each", lambda found: found["upload"] >= HELD_MS),
    ("bare_100k", "never-answers", "no response within"),
    ("steady_read", "drop-under-load", "[0-9]+ broken"),
    ("steady_read", "errors-under-load", "[0-9]+ of status 500"),
    ("steady_read", "stops-under-load", "[0-9]+ timeouts"),
    ("delay", "delay-all", "2 of 2 blocks held back while the application waited"),
    ("delay", "delay-each", lambda found: found["delay_p50"] >= HELD_MS),
    ("late", "delay-all", lambda found: found["late"] >= 200),
    ("sleep_c8", "drop-under-load", "[0-9]+ closed"),
    ("sleep_c8", "errors-under-load", "[0-9]+ status"),
    ("sleep_c8", "one-at-a-time", lambda found: found["sleep_c8"] < 20),
    ("gevent_c10", "one-at-a-time", lambda found: found["gevent_c10"] < 20),
    ("gevent_c10", "drop-under-load", "[0-9]+ closed"),
    ("streams", "drop-under-load", "[0-9]+ ConnectionResetError"),
    ("growth", "one-at-a-time", "1 of 100 in flight"),
    ("growth", "drop-under-load", lambda found: found["errors"] >= 1),
    ("overload", "errors-under-load", "[0-9]+ (status|other responses)"),
    ("processes", "memory-per-process", lambda found: found["worker_memory"] >= WASTED_PROCESS_MIB),
    ("processes", "ignores-sigttin", "SIGTTIN"),
    ("crowd_list", "drop-under-load", "[0-9]+ ConnectionResetError"),
    ("crowd_upload", "errors-under-load", "[0-9]+ wrong response"),
    ("crowd_both", "memory-per-connection", lambda found: found["crowd_both_memory"] >= WASTED_CROWD_MIB),
    ("flat_generator", "truncate", "134,217,727 of 134,217,728 bytes"),
    ("flat_generator", "delay-all", lambda found: found["flat_generator"] >= 100),
    ("calls", "byte-by-byte", lambda found: found["calls"] >= 50),
    ("idle", "memory-per-connection", lambda found: found["idle"] >= WASTED_BYTES),
    ("idle", "drop-under-load", "of 40 held"),
    ("startup", "slow-start", lambda found: found["startup"] >= SLOW_START_MS),
]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "fault", "evidence"), [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in CAUGHT]
)
def test_an_experiment_shows_what_it_measures(
    name: str, fault: str, evidence: str | Callable[[Figures], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "DEADLINE", 2.0)
    if fault == "never-answers":
        monkeypatch.setattr(checks, "PATIENCE", 1.0)
    columns = measured(name, fault)
    if isinstance(evidence, str):
        # The server may still be at it when its answers are checked afterwards; and on a busy machine it may not have
        # noticed that earlier connections ended, and drop the one that checks it first.
        dropped = "|connection closed mid-response" if fault == "drop-under-load" else ""
        assert re.search(f"{evidence}|disqualified: after the load{dropped}", said(columns)), said(columns)
        assert all(cell.errors or not cell.values for cell in cells(columns))
        return
    figures = {key: figure for key, column in columns.items() if (figure := column.figure("bad")) is not None}
    figures["errors"] = sum(cell.errors for cell in cells(columns))
    assert evidence(figures), f"{figures}; {said(columns)}"


def test_every_kind_of_experiment_is_here() -> None:
    kinds = {type(scenario) for scenario in scenarios.SCENARIOS}
    assert {type(TABLE[name]) for name in EXPERIMENTS} == kinds
