"""The user's own application: what its clients get from each server.

All servers must give the same response. First, each URL is requested twice from each server, more than a second apart,
since a page may show the time. A page that differs between two responses of one server is compared by status and
approximate length; every other page is compared byte for byte.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import quote

from tailrace.errors import ConfigError
from tailrace_compare import curl, launch
from tailrace_compare.checks import Wrong
from tailrace_compare.launch import HOST, NotServing, Place, Server
from tailrace_compare.peers import TAILRACE_GEVENT, Peer
from tailrace_compare.results import Metric, Sample
from tailrace_compare.scenarios.rate import Rate
from tailrace_compare.scenarios.scenario import Ask, Scenario

# The form that the other servers accept, too: no call, no file.
APPLICATION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
# Maximum time for a complete response.
SECONDS = 30.0
PIECE = 1 << 18
# Minimum time between two responses of the same server.
APART_SECONDS = 1.1
# If the first servers do not answer, the others are not asked.
MAX_SILENT = 3
MAX_FETCHES = 15
# Two lengths within a tenth, or 64 bytes, are about the same.
LENGTH_PART = 0.1
LENGTH_BYTES = 64
# For --only.
KINDS = ("c64", "c1", "new", "fetch")


@dataclass(frozen=True)
class Page:
    """One answer."""

    status: int
    length: int
    digest: str


@dataclass(frozen=True)
class Reference:
    """The response expected from every server. varies: the page differs each time."""

    page: Page
    varies: bool

    def fault(self, page: Page) -> str:
        """The fault of a response; empty if there is none."""
        if page.status != self.page.status:
            return f"status {page.status} instead of {self.page.status}"
        if self.varies:
            if not similar(page.length, self.page.length):
                return f"{page.length:,} bytes, but about {self.page.length:,} from the other servers"
        elif page.length != self.page.length:
            return f"{page.length:,} bytes instead of {self.page.length:,}"
        elif page != self.page:
            return "the body differs from that of the other servers"
        return ""


@dataclass(frozen=True)
class Survey:
    """For one URL: the reference, and the faults by server."""

    reference: Reference
    faults: Mapping[str, str]

    def told(self, target: str) -> str:
        """In a line."""
        page = self.reference.page
        if self.reference.varies:
            how = f"differs each time: only status and approximate length ({page.length:,} bytes) are compared"
        else:
            how = f"{page.length:,} bytes, compared byte for byte"
        return f"{target}: status {page.status}, {how}"


def similar(one: int, other: int) -> bool:
    return abs(one - other) <= max(LENGTH_BYTES, LENGTH_PART * max(one, other))


def agree(answers: Mapping[str, tuple[Page, Page]]) -> Survey:
    """The response of most servers; in a tie, that of the first one. Needs at least one server."""
    varying = [name for name, (first, second) in answers.items() if first != second]
    varies = 2 * len(varying) > len(answers)
    if varies:
        status = Counter(first.status for first, _ in answers.values()).most_common(1)[0][0]
        lengths = [page.length for pages in answers.values() for page in pages if page.status == status]
        reference = Reference(Page(status, round(median(lengths)), ""), True)
    else:
        steady = [first for name, (first, _) in answers.items() if name not in varying]
        reference = Reference(Counter(steady).most_common(1)[0][0], False)
    faults = {}
    for name, pages in answers.items():
        if found := next(filter(None, map(reference.fault, pages)), ""):
            faults[name] = found
    return Survey(reference, faults)


def place(directory: Path, target: str) -> Place:
    return Place(directory, target, any_status=True)


def fetch(server: Server, target: str) -> tuple[Page, float, float]:
    """One response on a new connection, and the milliseconds from the request to its first and last byte. Raises
    OSError, also if the response does not end within SECONDS."""
    connection = http.client.HTTPConnection(HOST, server.port, timeout=SECONDS)
    connection.sock = server.connect(SECONDS)
    try:
        begun = time.perf_counter()
        connection.request("GET", target, headers={"Connection": "close"})
        answer = connection.getresponse()
        first = time.perf_counter() - begun
        length, digest = digested(answer, begun + SECONDS)
        taken = time.perf_counter() - begun
    except http.client.HTTPException as error:
        raise OSError(f"incomplete response: {type(error).__name__} {error}".rstrip()) from error
    finally:
        connection.close()
    return Page(answer.status, length, digest), 1000 * first, 1000 * taken


def digested(answer: http.client.HTTPResponse, until: float) -> tuple[int, str]:
    """Length and digest of a body, which is read in pieces. Raises OSError and HTTPException."""
    stated, length, digest = answer.length, 0, hashlib.sha256()
    while piece := answer.read1(PIECE):
        digest.update(piece)
        length += len(piece)
        if time.perf_counter() > until:
            raise TimeoutError(f"the response does not end within {SECONDS:g} s")
    if stated is not None and length != stated:
        raise ConnectionResetError(f"{length:,} bytes instead of the Content-Length of {stated:,}")
    return length, digest.hexdigest()


def survey(app: str, directory: Path, targets: Iterable[str], peers: Iterable[Peer]) -> dict[str, Survey]:
    """Starts every server and requests each URL twice. Raises ConfigError if no server answers successfully."""
    wanted = tuple(targets)
    servers: list[Server] = []
    try:
        for peer in peers:
            servers.append(Server(peer, app, place=place(directory, wanted[0])))
        ready, silent = ready_of(servers)
        first = {target: answers(ready, target, silent) for target in wanted}
        # Pages that show the time differ by then.
        time.sleep(APART_SECONDS)
        second = {target: answers(ready, target, silent) for target in wanted}
    finally:
        launch.stop(servers)
    found = {}
    for target in wanted:
        given = {name: (page, second[target][name]) for name, page in first[target].items() if name in second[target]}
        if not given:
            said = next((f": {name} {text}" for name, text in silent.items()), "")
            raise ConfigError(f"no server responds to {target} of {app}{said}")
        found[target] = agree(given)
        status = found[target].reference.page.status
        if not 200 <= status < 400:
            raise ConfigError(f"{target} responds with status {status}; choose another path with --url")
    return found


def ready_of(servers: Iterable[Server]) -> tuple[list[Server], dict[str, str]]:
    """The servers that start, and the reasons why the others do not, by name."""
    ready: list[Server] = []
    silent: dict[str, str] = {}
    for server in servers:
        try:
            server.wait_until_ready()
            ready.append(server)
        except NotServing as error:
            silent[server.peer.name] = str(error)
        if not ready and len(silent) >= MAX_SILENT:
            break
    return ready, silent


def answers(servers: Iterable[Server], target: str, silent: dict[str, str]) -> dict[str, Page]:
    """A response of each server, by name; `silent` gets the reasons of those that give none."""
    found: dict[str, Page] = {}
    failed = 0
    for server in servers:
        try:
            found[server.peer.name] = fetch(server, target)[0]
        except OSError as error:
            silent[server.peer.name] = str(error) or type(error).__name__
            failed += 1
        if not found and failed >= MAX_SILENT:
            break
    return found


def check(server: Server, target: str, surveyed: Survey) -> None:
    """Raises Wrong if the response differs from the reference."""
    fault = surveyed.faults.get(server.peer.name) or surveyed.reference.fault(fetch(server, target)[0])
    if fault:
        raise Wrong(fault)


@dataclass(frozen=True)
class OwnRate(Rate):
    """Requests per second for one URL."""

    survey: Survey | None = None

    def check(self, server: Server) -> None:
        if self.survey is not None:
            check(server, self.path, self.survey)


@dataclass(frozen=True)
class OwnFetch(Scenario):
    """One fetch at a time, each on a new connection: time to first and last byte, in milliseconds."""

    survey: Survey | None = None

    def load(self, server: Server, ask: Ask) -> Sample:
        firsts: list[float] = []
        wholes: list[float] = []
        end = time.perf_counter() + ask.seconds
        while len(wholes) < MAX_FETCHES and (not wholes or time.perf_counter() < end):
            page, first, whole = fetch(server, self.path)
            if self.survey is not None and (fault := self.survey.reference.fault(page)):
                raise Wrong(fault)
            firsts.append(first)
            wholes.append(whole)
        first_key, whole_key = (metric.key for metric in self.metrics)
        return Sample({first_key: median(firsts), whole_key: median(wholes)})

    def check(self, server: Server) -> None:
        if self.survey is not None:
            check(server, self.path, self.survey)

    def reproduce(self) -> str:
        return " ".join(curl.command(f"http://127.0.0.1:8000{self.path}"))


def experiments(
    app: str, directory: Path, surveys: Mapping[str, Survey | None], only: Iterable[str] = ()
) -> tuple[Scenario, ...]:
    """The experiments for each URL; `only` has names of KINDS; empty means all. Each URL is measured once before any
    URL is measured in another way, because the time may run out."""
    found: list[Scenario] = []
    wanted = tuple(only) or KINDS
    for number, (target, surveyed) in enumerate(surveys.items(), 1):
        every = of_url(f"url{number}", app, target, place(directory, target), surveyed)
        found += [each for each in every if kind_of(each) in wanted]
    return tuple(sorted(found, key=lambda each: KINDS.index(kind_of(each))))


def kind_of(experiment: Scenario) -> str:
    return experiment.name.rpartition("_")[2]


def of_url(key: str, app: str, target: str, where: Place, surveyed: Survey | None) -> list[Scenario]:
    def rate(name: str, what: str, connections: int, close: bool = False) -> OwnRate:
        metric = Metric(f"{key}_{name}", f"{target}: {what}", f"{target}, {what}", "requests/s", True)
        latencies = [
            Metric(f"{key}_{name}_{part}", f"{target}: {what}: {part}", f"{target}, {what}, {part}", "ms", False, 2)
            for part in ("p50", "p99")
        ]
        return OwnRate(
            f"{key}_{name}",
            f"{target}: {what}",
            target,
            app,
            (metric, *latencies),
            also=(TAILRACE_GEVENT,),
            path=target,
            connections=connections,
            close=close,
            same_core=connections == 1,
            place=where,
            survey=surveyed,
        )

    fetching = OwnFetch(
        f"{key}_fetch",
        f"{target}: one fetch",
        target,
        app,
        (
            Metric(f"{key}_first", f"{target}: time to first byte", f"{target}, first byte", "ms", False, 2),
            Metric(f"{key}_whole", f"{target}: time to last byte", f"{target}, last byte", "ms", False, 2),
        ),
        also=(TAILRACE_GEVENT,),
        path=target,
        place=where,
        survey=surveyed,
    )
    return [
        rate("c64", "64 connections", 64),
        rate("c1", "one connection, client on the server's core", 1),
        rate("new", "a new connection for each request, 16 clients", 16, close=True),
        fetching,
    ]


def application(given: str) -> str:
    """The name in the form that every server accepts. Raises ConfigError."""
    if APPLICATION.fullmatch(given):
        return given
    raise ConfigError(
        f"{given}: the other servers need MODULE:CALLABLE, such as mysite.wsgi:application; for a factory or a file, "
        "write a module with `application = create_app()`"
    )


def target(given: str) -> str:
    """A path and query as a client sends it. Raises ConfigError."""
    if not given.startswith("/") or given.startswith("//"):
        raise ConfigError(f"--url {given}: give the path and query, such as /report?year=2026")
    if "#" in given:
        raise ConfigError(f"--url {given}: remove the fragment (#), which clients do not send to servers")
    return quote(given, safe="/?&=%+,;:@!$'()*~-._")


def kinds(given: Iterable[str]) -> None:
    """Raises ConfigError for names that --only does not accept with an application."""
    if unknown := [name for name in given if name not in KINDS]:
        raise ConfigError(
            f"--only: no such experiment: {unknown[0]}; with an application, choose from {', '.join(KINDS)}"
        )
