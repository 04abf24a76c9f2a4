"""Fixtures for all tests: servers that several tests share, and servers inside the test's own process."""

from __future__ import annotations

import compileall
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.addresses import Address, address_of
from harness.browser import CHROMIUM, Browser, Chromium
from harness.cases import Case
from harness.encrypted import TLS
from harness.greenlets import GEVENT, embedded
from harness.pages import ROOT
from harness.peers import PEER, peer_in_thread
from harness.server import Server

from tailrace.logs import log

# A shell without job control, or nohup, starts its commands with some of these signals ignored, and every server of the
# tests would inherit that.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)  # noqa: TID251

# Platforms set these, and they would change the defaults of every server of the tests.
for variable in ("PORT", "WEB_CONCURRENCY", "FORWARDED_ALLOW_IPS"):
    os.environ.pop(variable, None)

# Compiled once, because each server would otherwise compile them again. Servers write no bytecode: a test may change a
# module twice within a second, and the times in bytecode are in seconds.
for folder in (ROOT / "tailrace", *ROOT.glob("packages/*/tailrace_*")):
    compileall.compile_dir(folder, quiet=2)
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

DEAD = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Notes that one of the processes that share the tests has died, and has left tests that nobody runs."""
    if error:
        node.config.stash[DEAD] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Then more is wrong than that tests have failed."""
    if session.config.stash.get(DEAD, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_addoption(parser: pytest.Parser) -> None:
    """--nightly: only the tests that CI omits."""
    parser.addoption("--nightly", action="store_true", help="run only the tests that are too slow for every change")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what does not run this way, and what --nightly runs, unless it is named. With greenlets or TLS, keeps
    one case of each rule: the first parameters of a test, and the first way to send a case."""
    way = "greenlets" if GEVENT else "tls" if TLS else "threads"
    marks = {item: item.get_closest_marker("runs_with") for item in items}
    kept = {item for item, mark in marks.items() if mark is None or way in mark.args}
    if not any("::" in argument for argument in config.args):
        left_out = nightly(items)
        kept = kept & left_out if config.getoption("--nightly") else kept - left_out
    if GEVENT or TLS:
        kept = set({rule(item): item for item in reversed(items) if item in kept}.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def nightly(items: list[pytest.Item]) -> set[pytest.Item]:
    """The rows of tests that their marks keep out of the gate. Those in it lie on a diagonal of the table, so that few
    rows have many values of the parameters."""
    tables: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("nightly"):
            tables.setdefault(rule(item)[:2], []).append(item)
    left_out = set()
    for rows in tables.values():
        mark = rows[0].get_closest_marker("nightly")
        count = min(rows_in_the_gate(*mark.args, **mark.kwargs), len(rows))
        step = len(rows) // count if count else 1
        left_out |= set(rows) - {rows[number * step + number % step] for number in range(count)}
    return left_out


def rows_in_the_gate(gate: int = 0) -> int:
    """What the mark `nightly` says; a TypeError if it says anything else."""
    return gate


def rule(item: pytest.Item) -> tuple[Path, str, str]:
    """The file and the function of a test, and the id of the case that it sends, if that is one of harness/cases.py."""
    assert isinstance(item, pytest.Function)
    case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
    return item.path, item.originalname, case.id if isinstance(case, Case) else ""


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forgets which applications a test has imported: other tests have modules of the same names."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    kept = (sys.prefix, sys.base_prefix, str(ROOT / "tailrace"), str(ROOT / "packages"), str(ROOT / "tests/harness"))
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and not file.startswith(kept):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """The command, run in this process, sends the log elsewhere; other tests look for it where it was."""
    with log.restored():
        yield
    log.revive()


@pytest.fixture(scope="session")
def echo() -> Iterator[Server]:
    """A server of the echo application, with default settings."""
    with Server("echo:app", trusted_proxies="none") as server:
        yield server


@pytest.fixture
def serve() -> Iterator[Callable[..., Address]]:
    """Serves an application of the test itself, in this process: `address = serve(app, threads=4)`."""
    with contextlib.ExitStack() as stack:

        def start(app: Any, **options: Any) -> Address:
            if PEER:
                return address_of(stack.enter_context(peer_in_thread(app)))
            return address_of(stack.enter_context(embedded(app, **options)))

        yield start


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A browser, which takes longer to start than most of its tests."""
    if CHROMIUM is None and os.environ.get("CI") != "true":
        pytest.skip("Chromium is not installed")
    with Chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def browser(chromium: Chromium) -> Iterator[Browser]:
    """An empty page."""
    with Browser(chromium) as page:
        yield page
