"""The table of scenarios: what is measured, how it is shown, and the goals of Tailrace."""

from __future__ import annotations

from tailrace_compare.goals import AtLeast, AtMost, NoErrors, Times, TimesBest, WithinBest
from tailrace_compare.peers import NGINX, TAILRACE, TAILRACE_GEVENT
from tailrace_compare.results import Metric
from tailrace_compare.scenarios.delay import Delay
from tailrace_compare.scenarios.discard import Discard
from tailrace_compare.scenarios.fetch import Fetch
from tailrace_compare.scenarios.growth import Growth
from tailrace_compare.scenarios.idle import Idle
from tailrace_compare.scenarios.overload import Overload
from tailrace_compare.scenarios.processes import Processes
from tailrace_compare.scenarios.rate import Rate
from tailrace_compare.scenarios.rows import (
    AS_THREADS,
    BLOCKS,
    COST,
    EVERYDAY,
    FILE_SERVERS,
    FILES,
    FRAMEWORK_APPS,
    FRAMEWORK_REQUESTS,
    FRAMEWORK_SERVERS,
    FRAMEWORKS,
    GEVENT,
    GREENLET_SERVERS,
    GREENLETS,
    LARGE,
    LATENESS,
    OVERLOAD,
    PAYLOAD_100K,
    PAYLOAD_688K,
    SMALL,
    STEADY,
    WAITING,
    carried,
    cost,
    crowded,
    everyday,
    flat,
    frameworks,
    greenlets,
    lateness,
    milliseconds,
    mixed,
    payloads,
    rate,
    sleeping,
    static,
    steady,
)
from tailrace_compare.scenarios.scenario import Scenario
from tailrace_compare.scenarios.segments import Segments
from tailrace_compare.scenarios.startup import Startup
from tailrace_compare.scenarios.streaming import Streaming
from tailrace_compare.scenarios.syscalls import Syscalls

SCENARIOS: tuple[Scenario, ...] = (
    *everyday(),
    mixed(),
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
        meaning=(
            "Maximum requests per second on one core when the application does next to nothing: the overhead of the "
            "server itself."
        ),
    ),
    Rate(
        "pong_c1",
        "Pong, one connection, client on the server's core",
        SMALL,
        "served.shapes:pong",
        rate("pong_c1", "Pong, one connection, same core", "pong c1", Times(1.1, "fastwsgi")),
        connections=1,
        same_core=True,
        meaning=(
            "The time of one request from one client, without a network: the time that the server adds to each "
            "response."
        ),
    ),
    Rate(
        "connections",
        "Pong, a new connection for each request, 64 clients",
        SMALL,
        "served.shapes:pong",
        rate("connections", "New connections", "new conns"),
        connections=64,
        close=True,
        meaning=(
            "Requests per second when no client keeps its connection: for example, load balancers and scripts without "
            "keep-alive."
        ),
    ),
    Rate(
        "connections_c16",
        "Pong, a new connection for each request, 16 clients",
        SMALL,
        "served.shapes:pong",
        rate("connections_c16", "New connections, 16 clients", "new conns c16", Times(1.2, "bjoern")),
        connections=16,
        close=True,
        among=FRAMEWORK_SERVERS,
        meaning=(
            "Requests per second when no client keeps its connection: for example, load balancers and scripts without "
            "keep-alive."
        ),
    ),
    Segments(
        "segments",
        "TCP segments of one pong",
        SMALL,
        "served.shapes:pong",
        (Metric("segments", "TCP segments of one pong", "segments", "segments", False, 0, (AtMost(1),)),),
        rounds=2,
        meaning=(
            "The number of packets for one small response. More than one costs time on slow lines, and system calls in "
            "the server."
        ),
    ),
    *(
        row
        for name, title, app in FRAMEWORK_APPS
        for part, words, path, script in FRAMEWORK_REQUESTS
        for row in frameworks(f"{name}{part}", f"{title}, {words}", app, path, script)
    ),
    *frameworks("json", "100 rows as JSON", "served.shapes:rows"),
    *static("static_page", "A file of 21 KB", "page", 1.2),
    *static("static_deck", "A file of 688 KB", "deck", 1.0),
    *static("static_words", "A file of 2.5 MB", "words", 1.0),
    *static("static_304", "304 for a file of 21 KB", "page", 1.3, ("If-None-Match: *",), status=304),
    Rate(
        "page_c16",
        "A page of 21,324 bytes read from its file, 16 connections",
        LARGE,
        "served.shapes:page",
        rate("page_c16", "Page of 21 KB, 16 connections", "page c16"),
        connections=16,
        nginx="/page",
        meaning="Requests per second for a page that the application reads from a file each time.",
    ),
    Rate(
        "list_c4",
        "688,128 bytes as a list, 4 connections",
        LARGE,
        "served.shapes:payload",
        (
            *rate("list_c4", "688 KB as a list, 4 connections", "list c4", TimesBest(1.0), AS_THREADS),
            cost("list_c4", "688 KB as a list", "list c4", WithinBest(1.1)),
        ),
        also=GEVENT,
        connections=4,
        path="/688k/list",
        meaning="Throughput and processor time for large responses: how many of them one core delivers.",
    ),
    Discard(
        "list_discard",
        "688,128 bytes as a list, 4 connections, discarded by the client's kernel",
        LARGE,
        "served.shapes:payload",
        (
            *rate("list_discard", "688 KB as a list, discarded", "list discard", TimesBest(1.0), AS_THREADS),
            cost("list_discard", "688 KB as a list, discarded", "list discard"),
        ),
        also=GEVENT,
        path="/688k/list",
        meaning="The same responses to a client that costs no processor time: the speed of the server alone.",
    ),
    Rate(
        "file_c4",
        "688,128 bytes as a file object, 4 connections",
        LARGE,
        "served.shapes:payload",
        (
            *rate("file_c4", "688 KB file object, 4 connections", "file c4", Times(0.9, NGINX), AS_THREADS),
            cost("file_c4", "688 KB file object", "file c4"),
        ),
        also=GEVENT,
        connections=4,
        nginx="/deck",
        path="/688k/file",
        meaning="Throughput and processor time for large responses: how many of them one core delivers.",
    ),
    Rate(
        "wrapper_c4",
        "688,128 bytes through wsgi.file_wrapper, 4 connections",
        LARGE,
        "served.shapes:payload",
        (
            *rate("wrapper_c4", "688 KB file_wrapper, 4 connections", "wrapper c4", Times(0.9, NGINX), AS_THREADS),
            cost("wrapper_c4", "688 KB file_wrapper", "wrapper c4"),
        ),
        also=GEVENT,
        connections=4,
        nginx="/deck",
        path="/688k/wrapper",
        meaning="Throughput and processor time for large responses: how many of them one core delivers.",
    ),
    Fetch(
        "upload",
        "An upload of 20 MB, read by the application",
        LARGE,
        "served.shapes:upload",
        (milliseconds("upload", "20 MB upload", "upload"),),
        upload="upload",
        meaning="The time until the application has read an upload of 20 MB and one client has the response.",
    ),
    steady("steady_read", "A page of 21 KB, read by the application", "/files/page"),
    steady("steady_wrapper", "A page of 21 KB, through wsgi.file_wrapper", "/wrapped/page"),
    steady("steady_static", "A page of 21 KB, served by the server itself", "/files/page", among=FILE_SERVERS),
    *payloads(),
    carried("words", "TCP", "blocks"),
    carried("words_unix", "UNIX socket", "blocks unix", over_unix=True),
    carried("words_front", "behind nginx", "blocks front", over_unix=True, front=True),
    Rate(
        "blocks_c64",
        "25 blocks of 4 KiB, 64 connections",
        BLOCKS,
        "served.shapes:payload",
        rate("blocks_c64", "25 blocks of 4 KiB, 64 connections", "25 x 4 KiB", Times(2.0, "granian")),
        connections=64,
        path="/100k/4096",
        meaning=(
            "Requests per second for an application that generates its response in blocks, as templates and exports do."
        ),
    ),
    Delay(
        "delay",
        "Blocks after which the application waits",
        BLOCKS,
        "served.shapes:awaited",
        (
            Metric(
                "delay",
                "Blocks that arrive while the application waits",
                "there",
                "% of blocks",
                True,
                0,
                (AtLeast(100),),
            ),
            milliseconds("delay_p50", "Delay of a block before a wait: median", "delay", AtMost(1.0)),
            milliseconds("delay_p99", "Delay of a block before a wait: 99th percentile", "delay, p99", AtMost(6.0)),
        ),
        also=GEVENT,
        meaning=(
            "Whether progress, log lines and events reach the client at once, and how soon. Below 100 %, the server "
            "holds blocks back until the next block or the end of the response."
        ),
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
        "10,000 streams of server-sent events, one block per second each",
        GREENLETS,
        "served.shapes:events",
        (
            milliseconds("streams", "10,000 streams: maximum block delay", "streams", AtMost(100, of=TAILRACE_GEVENT)),
            milliseconds("streams_p99", "10,000 streams: 99th percentile of the block delay", "streams, p99"),
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
                "10,000 streams: blocks missed or more than 0.1 s late",
                "streams, missed",
                "blocks",
                False,
                0,
                (AtMost(0, of=TAILRACE_GEVENT),),
            ),
            Metric("streams_memory", "10,000 streams: memory per stream", "streams, memory", "KiB", False, 1),
        ),
        fresh=True,
        many=True,
        rounds=2,
        among=GREENLET_SERVERS,
        meaning="Whether thousands of open event streams get each event at once, and the memory per stream.",
    ),
    Growth(
        "growth",
        "Time until 100 sleeping requests are in flight",
        WAITING,
        "served.shapes:growth",
        (Metric("growth", "100 sleeping requests in flight", "growth", "ms", False, 0, (AtMost(200),)),),
        fresh=True,
        rounds=2,
        meaning="How soon each of 100 simultaneous waiting requests has a thread.",
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
            milliseconds("overload_refusal", "Overload: 99th percentile of the refusals", "refusal", AtMost(10)),
            Metric("overload_memory", "Overload: memory", "growth", "MiB", False, 1, (AtMost(2.0),)),
        ),
        fresh=True,
        rounds=2,
        among=(TAILRACE,),
        flags=((TAILRACE, "--threads 2 --max-queue 8"),),
        meaning=(
            "The behavior at ten times the capacity: how much load is still served, and how soon the rest is refused."
        ),
    ),
    Processes(
        "processes",
        "Django with --preload: restart time, memory per worker",
        OVERLOAD,
        "served.django_hello:app",
        (
            milliseconds("restart", "From SIGTERM to the first response of the next server", "restart"),
            Metric("worker_memory", "Memory of each additional worker, --preload", "worker", "MiB", False, 1),
        ),
        fresh=True,
        rounds=3,
        among=(TAILRACE, "gunicorn gthread"),
        flags=((TAILRACE, "--preload"), ("gunicorn gthread", "--preload")),
        meaning="How long a restart leaves clients without a response, and the memory of each additional worker.",
    ),
    crowded("crowd_list", "1,000 read a list of 10 MB at 100 KB/s", "crowd, list"),
    crowded("crowd_file", "1,000 read a file of 10 MB at 100 KB/s", "crowd, file", path="/file", nginx="/crowd"),
    crowded("crowd_own", "1,000 read different 10 MB at 100 KB/s", "crowd, own", path="/own", fits=False),
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
    crowded(
        "crowd_both",
        "500 read a file of 10 MB while 500 send 1 MB, at 50 KB/s each",
        "crowd, both",
        what="both",
        path="/file,/upload",
        pace=50_000,
        size="10000000,1000000",
    ),
    flat("flat_file", "2 GiB through wsgi.file_wrapper: memory growth", "2 GiB file"),
    flat("flat_generator", "2 GiB from a generator: memory growth", "2 GiB blocks"),
    # Three, and what attaching and the one connection add to 2,000 requests.
    Syscalls(
        "calls",
        "System calls per small response",
        COST,
        "served.shapes:hello",
        (Metric("calls", "System calls per small response", "calls", "calls", False, 2, (AtMost(3.01),)),),
        rounds=1,
        meaning=(
            "System calls for a small response. Each costs processor time, more so if the kernel has mitigations "
            "against side channels."
        ),
    ),
    Syscalls(
        "calls_words",
        "System calls for 19,478 blocks of 128 bytes",
        COST,
        "served.shapes:words",
        (Metric("calls_words", "System calls for 19,478 blocks", "calls blocks", "calls", False, 0, (AtMost(599),)),),
        rounds=1,
        requests=4,
        meaning=(
            "System calls for a response in many small blocks. About one per block means that blocks are not coalesced."
        ),
    ),
    Idle(
        "idle",
        "Memory per idle connection, with 10,000",
        COST,
        "served.shapes:hello",
        (
            Metric("idle", "Memory per idle connection", "idle", "bytes", False, 0, (AtMost(1023),)),
            Metric("idle_worker", "Memory of a server with one worker", "worker", "MiB", False, 1),
        ),
        fresh=True,
        many=True,
        rounds=1,
        meaning=(
            "The memory of an open connection without requests, and of a server with one worker and a small "
            "application."
        ),
    ),
    Startup(
        "startup",
        "From the start of the command to the first response",
        COST,
        "served.shapes:hello",
        (Metric("startup", "Start-up", "start-up", "ms", False, 0),),
        fresh=True,
        rounds=3,
        meaning=(
            "How long it takes after a deployment, a crash or the start of a container until requests are answered."
        ),
    ),
)


def usual() -> tuple[Scenario, ...]:
    """The experiments that run by default."""
    return tuple(scenario for scenario in SCENARIOS if not scenario.asked)


# Groups that --only can name.
GROUPS = {
    "everyday": EVERYDAY,
    "frameworks": FRAMEWORKS,
    "static": FILES,
    "payload_100k": PAYLOAD_100K,
    "payload_688k": PAYLOAD_688K,
    "steady": STEADY,
}


def by_name(names: list[str]) -> tuple[Scenario, ...]:
    """The scenarios with these names, in the order of the table; a name of GROUPS stands for the whole group. Raises
    ValueError."""
    known = [scenario.name for scenario in SCENARIOS]
    for name in names:
        if name not in (*known, *GROUPS):
            raise ValueError(f"no such experiment: {name}; choose from {', '.join((*GROUPS, *known))}")
    groups = [group for name, group in GROUPS.items() if name in names]
    return tuple(scenario for scenario in SCENARIOS if scenario.name in names or scenario.group in groups)
