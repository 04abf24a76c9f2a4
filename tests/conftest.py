"""Fixtures for all tests: servers that several tests share, and servers inside the test's own process."""

from __future__ import annotations

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
        signal.signal(number, handler)

# Platforms set these, and they would change the defaults of every server of the tests.
for variable in ("PORT", "WEB_CONCURRENCY", "FORWARDED_ALLOW_IPS"):
    os.environ.pop(variable, None)

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With greenlets or TLS, keeps one case of each rule: the first parameters of a test, and the first way to send a
    case."""
    if not (GEVENT or TLS):
        return
    first = {rule(item): item for item in reversed(items)}
    kept = set(first.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


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
    kept = (sys.prefix, sys.base_prefix, str(ROOT / "tailrace"), str(ROOT / "tests/harness"))
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
    with Server("echo:app") as server:
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
