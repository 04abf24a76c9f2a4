"""The table of scenarios: what is measured, how it is shown, and what Tailrace is meant to reach."""

from __future__ import annotations

from tailrace.compare.goals import AtLeast, AtMost, FloorTimes, NoErrors, Times, TimesBest, WithinBest
from tailrace.compare.peers import NGINX, TAILRACE, TAILRACE_GEVENT
from tailrace.compare.results import Metric
from tailrace.compare.scenarios.discard import Discard
from tailrace.compare.scenarios.fetch import Fetch
from tailrace.compare.scenarios.growth import Growth
from tailrace.compare.scenarios.idle import Idle
from tailrace.compare.scenarios.overload import Overload
from tailrace.compare.scenarios.processes import Processes
from tailrace.compare.scenarios.rate import Rate
from tailrace.compare.scenarios.rows import (
    AS_THREADS,
    BLOCKS,
    COST,
    FILES,
    FRAMEWORK_SERVERS,
    FRAMEWORKS,
    GEVENT,
    GREENLET_SERVERS,
    GREENLETS,
    LARGE,
    LATENESS,
    OVERLOAD,
    SMALL,
    WAITING,
    cost,
    crowded,
    flat,
    frameworks,
    greenlets,
    lateness,
    milliseconds,
    rate,
    sleeping,
    static,
    words,
)
from tailrace.compare.scenarios.scenario import Scenario
from tailrace.compare.scenarios.segments import Segments
from tailrace.compare.scenarios.startup import Startup
from tailrace.compare.scenarios.streaming import Streaming
from tailrace.compare.scenarios.syscalls import Syscalls

SCENARIOS: tuple[Scenario, ...] = (
    Rate(
        "pong_c64",
        "Pong: 4 bytes, 15 header fields, 64 connections",
        SMALL,
        "served.shapes:pong",
        rate(
            "pong_c64",
            "Pong, 64 connections",
            "pong c64",
            Times(1.15, "fastwsgi"),
            Times(1.3, "bjoern"),
            Times(1.7, "granian"),
            Times(8.0, "gevent pywsgi", of=TAILRACE_GEVENT),
        ),
        also=GEVENT,
        connections=64,
    ),
    Rate(
        "pong_c1",
        "Pong, one connection, client on the server's core",
        SMALL,
        "served.shapes:pong",
        rate("pong_c1", "Pong, one connection, same core", "pong c1", Times(1.1, "fastwsgi")),
        connections=1,
        same_core=True,
    ),
    Rate(
        "connections",
        "Pong, a new connection for each of 64 clients' requests",
        SMALL,
        "served.shapes:pong",
        rate("connections", "New connections", "new conns"),
        connections=64,
        close=True,
    ),
    Rate(
        "connections_c16",
        "Pong, a new connection for each of 16 clients' requests",
        SMALL,
        "served.shapes:pong",
        rate("connections_c16", "New connections, 16 clients", "new conns c16", Times(1.2, "bjoern")),
        connections=16,
        close=True,
        among=FRAMEWORK_SERVERS,
    ),
    Segments(
        "segments",
        "TCP segments of one pong",
        SMALL,
        "served.shapes:pong",
        (Metric("segments", "TCP segments of one pong", "segments", "segments", False, 0, (AtMost(1),)),),
        rounds=2,
    ),
    *frameworks("flask", "Flask hello", "served.flask_hello:app"),
    *frameworks("flask_page", "Flask, a page from a template", "served.flask_hello:app", "/page"),
    *frameworks("django", "Django hello, usual middleware", "served.django_hello:app"),
    *frameworks("json", "100 rows as JSON", "served.shapes:rows"),
    *static("static_page", "A file of 21 KB", "page", 1.2),
    *static("static_deck", "A file of 688 KB", "deck", 1.0),
    *static("static_words", "A file of 2.5 MB", "words", 1.0),
    *static("static_304", "304 for a file of 21 KB", "page", 1.3, ("If-None-Match: *",), checked=False),
    Rate(
        "page_c16",
        "A page of 21,324 bytes read from its file, 16 connections",
        LARGE,
        "served.shapes:page",
        rate("page_c16", "Page of 21 KB, 16 connections", "page c16"),
        connections=16,
        content="page",
        nginx="/page",
    ),
    Rate(
        "list_c4",
        "688,128 bytes as a list, 4 connections",
        LARGE,
        "served.shapes:deck_list",
        (
            *rate("list_c4", "688 KB as a list, 4 connections", "list c4", TimesBest(1.0), AS_THREADS),
            cost("list_c4", "688 KB as a list", "list c4", WithinBest(1.1)),
        ),
        also=GEVENT,
        connections=4,
        content="deck",
    ),
    Discard(
        "list_discard",
        "688,128 bytes as a list, 4 connections, discarded by the client's kernel",
        LARGE,
        "served.shapes:deck_list",
        (
            *rate("list_discard", "688 KB as a list, discarded", "list discard", TimesBest(1.0), AS_THREADS),
            cost("list_discard", "688 KB as a list, discarded", "list discard"),
        ),
        also=GEVENT,
    ),
    Fetch(
        "file",
        "688,128 bytes as a file object, one fetch",
        LARGE,
        "served.shapes:deck_file",
        (milliseconds("file", "688 KB file object", "file", AS_THREADS),),
        also=GEVENT,
        content="deck",
        nginx="/deck",
    ),
    Rate(
        "file_c4",
        "688,128 bytes as a file object, 4 connections",
        LARGE,
        "served.shapes:deck_file",
        (
            *rate("file_c4", "688 KB file object, 4 connections", "file c4", Times(0.9, NGINX), AS_THREADS),
            cost("file_c4", "688 KB file object", "file c4"),
        ),
        also=GEVENT,
        connections=4,
        content="deck",
        nginx="/deck",
    ),
    Fetch(
        "wrapper",
        "688,128 bytes through wsgi.file_wrapper, one fetch",
        LARGE,
        "served.shapes:deck_wrapper",
        (milliseconds("wrapper", "688 KB file_wrapper", "wrapper", AS_THREADS),),
        also=GEVENT,
        content="deck",
        nginx="/deck",
    ),
    Rate(
        "wrapper_c4",
        "688,128 bytes through wsgi.file_wrapper, 4 connections",
        LARGE,
        "served.shapes:deck_wrapper",
        (
            *rate("wrapper_c4", "688 KB file_wrapper, 4 connections", "wrapper c4", Times(0.9, NGINX), AS_THREADS),
            cost("wrapper_c4", "688 KB file_wrapper", "wrapper c4"),
        ),
        also=GEVENT,
        connections=4,
        content="deck",
        nginx="/deck",
    ),
    Fetch(
        "upload",
        "An upload of 20 MB, read by the application",
        LARGE,
        "served.shapes:upload",
        (milliseconds("upload", "20 MB upload", "upload"),),
        upload="upload",
    ),
    words("words", "2.5 MB in blocks of 128 bytes", "128 B blocks", over_unix=False),
    words("words_unix", "2.5 MB in blocks of 128 bytes, UNIX socket", "128 B unix", over_unix=True),
    Fetch(
        "bytes",
        "688,128 blocks of one byte",
        BLOCKS,
        "served.shapes:deck_bytes",
        (
            milliseconds("bytes", "688,128 blocks of one byte: whole response", "1 B blocks"),
            milliseconds(
                "bytes_app", "688,128 blocks of one byte: in the application", "1 B blocks, app", FloorTimes(1.6)
            ),
        ),
        content="deck",
        timed=True,
        generator="deck_byte_blocks",
        rounds=3,
    ),
    Fetch(
        "bare",
        "688,128 bytes as bare bytes, the brackets forgotten",
        BLOCKS,
        "served.shapes:deck_bare",
        (milliseconds("bare", "688 KB of bare bytes", "bare bytes"),),
        content="deck",
        rounds=3,
    ),
    Rate(
        "blocks_c64",
        "25 blocks of 4 KiB, 64 connections",
        BLOCKS,
        "served.shapes:blocks",
        rate("blocks_c64", "25 blocks of 4 KiB, 64 connections", "25 x 4 KiB", Times(2.0, "granian")),
        connections=64,
    ),
    lateness("late", "Blocks in random rhythms", "late", over_unix=False, among=LATENESS),
    lateness(
        "late_unix",
        "Blocks in random rhythms, UNIX socket",
        "late, unix",
        over_unix=True,
        among=(TAILRACE, TAILRACE_GEVENT),
    ),
    sleeping(1, AtLeast(95), NoErrors()),
    sleeping(8, AtLeast(95), NoErrors()),
    sleeping(100, AtLeast(95), NoErrors()),
    sleeping(1000),
    greenlets(10, AtLeast(97, of=TAILRACE_GEVENT), NoErrors(of=TAILRACE_GEVENT)),
    greenlets(100, AtLeast(97, of=TAILRACE_GEVENT), NoErrors(of=TAILRACE_GEVENT)),
    greenlets(
        1000,
        AtLeast(97, of=TAILRACE_GEVENT),
        NoErrors(of=TAILRACE_GEVENT),
        Times(1.3, "gevent pywsgi", of=TAILRACE_GEVENT),
        Times(1.5, "gunicorn gevent", of=TAILRACE_GEVENT),
    ),
    greenlets(5000, NoErrors(of=TAILRACE_GEVENT)),
    Streaming(
        "streams",
        "10,000 streams of server-sent events, a block a second each",
        GREENLETS,
        "served.shapes:events",
        (
            milliseconds("streams", "10,000 streams: the slowest block", "streams", AtMost(100, of=TAILRACE_GEVENT)),
            milliseconds("streams_p99", "10,000 streams: 99 % of the blocks", "streams, p99"),
            Metric(
                "streams_open",
                "10,000 streams: open at the end",
                "streams, open",
                "% of them",
                True,
                1,
                (AtLeast(100, of=TAILRACE_GEVENT),),
            ),
            Metric(
                "streams_missed",
                "10,000 streams: blocks missed, or 0.1 s behind their second",
                "streams, missed",
                "blocks",
                False,
                0,
                (AtMost(0, of=TAILRACE_GEVENT),),
            ),
            Metric("streams_memory", "10,000 streams: memory of one", "streams, memory", "KiB", False, 1),
        ),
        fresh=True,
        many=True,
        rounds=2,
        among=GREENLET_SERVERS,
    ),
    Growth(
        "growth",
        "From the first to the hundredth sleeping request in flight",
        WAITING,
        "served.shapes:growth",
        (Metric("growth", "100 sleeping requests in flight", "growth", "ms", False, 0, (AtMost(200),)),),
        fresh=True,
        rounds=2,
    ),
    Overload(
        "overload",
        "Ten times the capacity of 2 threads that sleep 20 ms",
        OVERLOAD,
        "served.shapes:nap",
        (
            Metric(
                "overload",
                "Overload: goodput",
                "overload, goodput",
                "% of capacity",
                True,
                1,
                (AtLeast(90), NoErrors()),
            ),
            milliseconds("overload_refusal", "Overload: refusals, 99 % of them", "refusal", AtMost(10)),
            Metric("overload_memory", "Overload: memory", "growth", "MiB", False, 1, (AtMost(2.0),)),
        ),
        fresh=True,
        rounds=2,
        among=(TAILRACE,),
        flags=((TAILRACE, "--threads 2 --max-queue 8"),),
    ),
    Processes(
        "processes",
        "Django with --preload: a restart, and each further worker",
        OVERLOAD,
        "served.django_hello:app",
        (
            milliseconds("restart", "From SIGTERM to the first answer of the next server", "restart"),
            Metric("worker_memory", "Memory of each further worker, --preload", "worker", "MiB", False, 1),
        ),
        fresh=True,
        rounds=3,
        among=(TAILRACE, "gunicorn gthread"),
        flags=((TAILRACE, "--preload"), ("gunicorn gthread", "--preload")),
    ),
    crowded("crowd_list", "1,000 read a list of 10 MB at 100 KB/s", "crowd, list"),
    crowded("crowd_file", "1,000 read a file of 10 MB at 100 KB/s", "crowd, file", path="/file", nginx="/crowd"),
    crowded("crowd_own", "1,000 read 10 MB of their own at 100 KB/s", "crowd, own", path="/own", fits=False),
    crowded(
        "crowd_blocks", "1,000 read 200 blocks of 50 KB at 100 KB/s", "crowd, blocks", path="/generator", fits=False
    ),
    crowded(
        "crowd_upload",
        "500 send 1 MB at 20 KB/s",
        "crowd, upload",
        what="upload",
        path="/upload",
        clients=500,
        pace=20_000,
        size=1_000_000,
    ),
    flat("flat_file", "2 GiB through wsgi.file_wrapper: growth", "2 GiB file"),
    flat("flat_generator", "2 GiB from a generator: growth", "2 GiB blocks"),
    # Three, and what attaching and the one connection add to 2,000 requests.
    Syscalls(
        "calls",
        "System calls of a hello",
        COST,
        "served.shapes:hello",
        (Metric("calls", "System calls of a hello", "calls", "calls", False, 2, (AtMost(3.01),)),),
        rounds=1,
    ),
    Syscalls(
        "calls_words",
        "System calls of 19,478 blocks of 128 bytes",
        COST,
        "served.shapes:words",
        (Metric("calls_words", "System calls of 19,478 blocks", "calls blocks", "calls", False, 0, (AtMost(599),)),),
        rounds=1,
        requests=4,
    ),
    Idle(
        "idle",
        "Memory of an idle connection, of 10,000",
        COST,
        "served.shapes:hello",
        (Metric("idle", "Memory of an idle connection", "idle", "bytes", False, 0, (AtMost(1023),)),),
        fresh=True,
        many=True,
        rounds=1,
    ),
    Startup(
        "startup",
        "From the start of the command to the first answer",
        COST,
        "served.shapes:hello",
        (Metric("startup", "Start-up", "start-up", "ms", False, 0),),
        fresh=True,
        rounds=3,
    ),
)


def usual() -> tuple[Scenario, ...]:
    """What is measured where nothing is asked for."""
    return tuple(scenario for scenario in SCENARIOS if not scenario.asked)


# Groups that are measured where they are asked for, by a name of their own.
GROUPS = {"frameworks": FRAMEWORKS, "static": FILES}


def by_name(names: list[str]) -> tuple[Scenario, ...]:
    """The scenarios with these names, in the table's order; a name of GROUPS is all of that group. Raises
    ValueError."""
    known = [scenario.name for scenario in SCENARIOS]
    for name in names:
        if name not in (*known, *GROUPS):
            raise ValueError(f"no such scenario: {name} (there are {', '.join((*GROUPS, *known))})")
    groups = [group for name, group in GROUPS.items() if name in names]
    return tuple(scenario for scenario in SCENARIOS if scenario.name in names or scenario.group in groups)
