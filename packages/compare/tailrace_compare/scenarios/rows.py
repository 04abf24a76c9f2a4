"""Similar rows of the table of scenarios, the names of its groups, and the servers that take part."""

from __future__ import annotations

import shlex

from tailrace_compare.goals import AtLeast, AtMost, FloorTimes, NoErrors, Times, TimesBest, Within, WithinBest
from tailrace_compare.peers import NGINX, TAILRACE, TAILRACE_GEVENT, VIEW
from tailrace_compare.results import Goal, Metric
from tailrace_compare.scenarios.carried import UWSGI_SOCKET, Carried
from tailrace_compare.scenarios.crowded import Crowded
from tailrace_compare.scenarios.fetch import Fetch
from tailrace_compare.scenarios.flat import Flat
from tailrace_compare.scenarios.lateness import Lateness
from tailrace_compare.scenarios.mix import Mix
from tailrace_compare.scenarios.rate import UPLOAD, Rate, Static
from tailrace_compare.scenarios.sleeping import Sleeping
from tailrace_compare.scenarios.steady import Steady
from tailrace_compare.served import files

EVERYDAY = "In production: a worker per core"
SMALL = "Small responses"
PAYLOAD_100K = "100 KB in different shapes"
PAYLOAD_688K = "688 KB in different shapes"
STEADY = "A file at constant request rates"
FRAMEWORKS = "Frameworks"
LARGE = "Large responses"
BLOCKS = "Many blocks"
WAITING = "Applications that wait"
GREENLETS = "Greenlets"
OVERLOAD = "Overload and processes"
FILES = "Static files"
CROWDS = "Crowds of slow clients"
SIZE = "Responses larger than memory"
COST = "Resources"

# The memory for responses, half of --client-memory, and 50 MiB, what a crowd of slow clients may cost.
CROWD_MEMORY = 256 + 50
# A round of a crowd takes half a minute; each of these fails in a way of its own.
CROWDED = (TAILRACE, "gunicorn gthread", "granian", "uwsgi http", "waitress")
# The fastest, and the most used.
FRAMEWORK_SERVERS = (TAILRACE, "bjoern", "fastwsgi", "granian", "uwsgi http11", "gunicorn gthread")
STEADY_RATES = (500, 1000, 2000, 4000)
BLOCK_SIZES = (128, 1024, 8192, 65536)
# Who speaks the uwsgi protocol, and how, beside HTTP.
UWSGI_FLAGS = (
    (TAILRACE, f"--bind uwsgi+unix:{UWSGI_SOCKET} --trusted-proxies unix"),
    (TAILRACE_GEVENT, f"--bind uwsgi+unix:{UWSGI_SOCKET} --trusted-proxies unix"),
    ("uwsgi http11", f"--socket {UWSGI_SOCKET}"),
)
# A round is some seconds of pauses.
LATENESS = (
    TAILRACE,
    TAILRACE_GEVENT,
    "gunicorn gthread",
    "gunicorn gevent",
    "granian",
    "uwsgi http",
    "waitress",
    "gevent pywsgi",
    "bjoern",
)
# Beside the usual ones, where greenlets are compared with threads.
GEVENT = (TAILRACE_GEVENT,)
GREENLET_SERVERS = (TAILRACE_GEVENT, "gevent pywsgi", "gunicorn gevent")
AS_THREADS = Within(1.5, TAILRACE, of=TAILRACE_GEVENT)


def rate(key: str, title: str, short: str, *goals: Goal) -> tuple[Metric, ...]:
    return (Metric(key, title, short, "requests/s", True, 0, goals),)


def cost(key: str, title: str, short: str, *goals: Goal) -> Metric:
    title = f"{title}: processor time per request"
    return Metric(f"{key}_cost", title, f"{short}, cost", "us", False, 0, goals)


def above(key: str, title: str, short: str, *goals: Goal) -> Metric:
    title = f"{title}: processor time per request beyond the call of the application"
    return Metric(f"{key}_above", title, f"{short}, above", "us", False, 1, goals)


# What is asked of Flask and of Django: name, words, path, wrk's script.
FRAMEWORK_REQUESTS = (
    ("", "hello", "/", ""),
    ("_page", "a page from a template", "/page", ""),
    ("_json", "JSON", "/json", ""),
    ("_upload", "an upload of 100 KB", "/upload", UPLOAD),
)
FRAMEWORK_APPS = (("flask", "Flask", "served.flask_hello:app"), ("django", "Django", "served.django_hello:app"))
# Applications that measure the cost of their own call.
MEASURED = tuple(app for _, _, app in FRAMEWORK_APPS)


def everyday() -> tuple[Rate, ...]:
    """Flask and Django as in production."""
    return tuple(
        Rate(
            key,
            load,
            EVERYDAY,
            app,
            rate_and_latency(key, load, key.replace("_", " ")),
            "The throughput and latency to expect from this server on a machine like this one, with one worker per "
            "core and 32 busy clients.",
            path=path,
            among=(*FRAMEWORK_SERVERS, "waitress"),
            connections=32,
            script=script,
            all_cores=True,
        )
        for name, title, app in FRAMEWORK_APPS
        for part, words, path, script in FRAMEWORK_REQUESTS[1:]
        for key, load in [(f"everyday_{name}{part}", f"{title}, {words}, a worker per core, 32 connections")]
    )


def mixed() -> Mix:
    title = "Flask: 65 % a short page, 30 % wait 20 ms, 5 % compute 5 ms; 96 connections"
    p99 = Metric("mix_p99", f"{title}: p99 of the short page", "mix, p99", "ms", False, 1, (WithinBest(1.05),))
    return Mix(
        "mix",
        title,
        EVERYDAY,
        "served.flask_hello:app",
        (*rate("mix", title, "mix", TimesBest(1.05)), p99),
        "The throughput of an application of which some views wait and some compute, and how long a visitor waits "
        "for a quick page beside them, with one worker per core.",
        among=(*FRAMEWORK_SERVERS, "waitress"),
        connections=96,
        script="mix.lua",
        all_cores=True,
    )


def rate_and_latency(
    key: str, load: str, short: str, *goals: Goal, within: tuple[Goal, ...] = ()
) -> tuple[Metric, ...]:
    return (
        *rate(key, load, short, *goals),
        cost(key, load, short),
        *(
            Metric(f"{key}_{part}", f"{load}: {part}", f"{short}, {part}", "ms", False, 2, within)
            for part in ("p50", "p99")
        ),
    )


def frameworks(name: str, title: str, app: str, path: str = "/", script: str = "") -> tuple[Rate, ...]:
    """An application with 1, 4, 16 and 64 connections: client on the other core, and on the server's core. By default,
    only 16 connections from the other core are measured."""
    found = []
    for same_core in (False, True):
        for connections in (1, 4, 16, 64):
            key = f"{name}_c{connections}{'_same' if same_core else ''}"
            where = ", same core" if same_core else ""
            load = f"{title}, {connections} connection{'s' if connections > 1 else ''}{where}"
            goal = TimesBest(1.05 if connections >= 16 else 0.98)
            metrics = rate_and_latency(key, load, key.replace("_", " "), goal, within=(WithinBest(1.05),))
            # Not of an upload: its call takes the body from the server.
            if app in MEASURED and not script:
                goals = (AtMost(15.0),) if name == "flask" and connections >= 16 else ()
                metrics += (above(key, load, key.replace("_", " "), *goals),)
            found.append(
                Rate(
                    key,
                    load,
                    FRAMEWORKS,
                    app,
                    metrics,
                    "Requests per second and latency of one core when the framework takes most of the time: how much "
                    "the speed of the server still matters in a real application.",
                    path=path,
                    among=FRAMEWORK_SERVERS,
                    asked=same_core or connections != 16,
                    connections=connections,
                    same_core=same_core,
                    script=script,
                )
            )
    return tuple(found)


# Servers that serve files beside the application, with their own options.
FILE_SERVERS = (TAILRACE, VIEW, "granian", "uwsgi http11", "mod_wsgi")
# As one word, whatever is in the name of the home directory.
DIRECTORY = shlex.quote(str(files.DIRECTORY))
FILE_FLAGS = (
    (TAILRACE, f"--static /files={DIRECTORY}"),
    ("granian", f"--static-path-route /files --static-path-mount {DIRECTORY}"),
    # Without the second, each response waits for a delayed acknowledgement.
    ("uwsgi http11", f"--static-map /files={DIRECTORY} --tcp-nodelay"),
    ("mod_wsgi", f"--url-alias /files {DIRECTORY}"),
)


def static(
    name: str, title: str, file: str, times_nginx: float, fields: tuple[str, ...] = (), status: int = 200
) -> tuple[Rate, ...]:
    """A file served by the server itself to 64 connections: client on the other core, and on the server's core."""
    found = []
    for same_core in (False, True):
        key = f"{name}{'_same' if same_core else ''}"
        load = f"{title}, 64 connections{', same core' if same_core else ''}"
        short = key.replace("_", " ")
        goals = (Times(times_nginx, NGINX), Times(3.0, "granian"), Times(3.0, "uwsgi http11"))
        found.append(
            Static(
                key,
                load,
                FILES,
                "served.shapes:view",
                (*rate(key, load, short, *goals), cost(key, load, short)),
                "Files per second that the server delivers by itself. If it is fast enough, you do not need a web "
                "server for static files.",
                path=f"/files/{file}",
                nginx=f"/{file}",
                among=FILE_SERVERS,
                flags=FILE_FLAGS,
                asked=same_core,
                same_core=same_core,
                fields=fields,
                status=status,
            )
        )
    return tuple(found)


def steady(name: str, title: str, path: str, *, among: tuple[str, ...] = ()) -> Steady:
    """The page of 21 KB. among: those that serve it by themselves, by their options."""
    metrics = []
    for each in STEADY_RATES:
        key, load, short = f"{name}_{each}", f"{title}, {each:,} requests/s", f"{name.replace('_', ' ')} {each}"
        metrics.append(Metric(key, f"{load}: replies in time", short, "%", True, 1, (AtLeast(99.9),)))
        metrics.append(milliseconds(f"{key}_p99", f"{load}: 99th percentile of the replies", f"{short}, p99"))
    return Steady(
        name,
        title,
        STEADY,
        "served.shapes:view",
        tuple(metrics),
        "The rate of new visitors up to which all of them get the file in time. If there are fewer replies than "
        "requests, the server is overloaded and visitors see timeouts.",
        path=path,
        nginx="/page",
        rounds=2,
        among=among,
        flags=FILE_FLAGS if among else (),
        rates=STEADY_RATES,
    )


def milliseconds(key: str, title: str, short: str, *goals: Goal) -> Metric:
    return Metric(key, title, short, "ms", False, 1, goals)


# The shape in `served.shapes.PAYLOAD_SHAPES`, the name of its row for 688 KB, and words.
PAYLOADS = (
    ("bare", "bare", "bare bytes (not in a list)"),
    ("list", "list", "a list"),
    ("file", "file", "a file object"),
    ("wrapper", "wrapper", "wsgi.file_wrapper"),
    ("4096", "blocks", "blocks of 4 KiB"),
    ("128", "small", "blocks of 128 bytes"),
    ("1", "bytes", "blocks of one byte"),
)
PAYLOAD_GOALS: dict[str, tuple[Goal, ...]] = {"file": (AS_THREADS,), "wrapper": (AS_THREADS,)}
PAYLOAD_MEANING = (
    "How long one client waits for the same bytes when the application returns them in this shape. If all shapes take "
    "the same time, you need not adapt the application to the server."
)


def payloads() -> tuple[Fetch, ...]:
    """One payload of 100 KB and of 688 KB, in every shape."""
    found = []
    for size, shown, end, group in (("100k", "100 KB", "_100k", PAYLOAD_100K), ("688k", "688 KB", "", PAYLOAD_688K)):
        for shape, name, words in PAYLOADS:
            key, title = f"{name}{end}", f"{shown} as {words}"
            metrics = [milliseconds(key, title, f"{shown} {name}", *PAYLOAD_GOALS.get(key, ()))]
            floor = key == "bytes"
            if floor:
                app = f"{title}: in the application"
                metrics.append(milliseconds("bytes_app", app, "1 B blocks, app", FloorTimes(1.6)))
            found.append(
                Fetch(
                    key,
                    title,
                    group,
                    # The one that counts has an application of its own.
                    "served.shapes:deck_bytes" if floor else "served.shapes:payload",
                    tuple(metrics),
                    PAYLOAD_MEANING,
                    path="/" if floor else f"/{size}/{shape}",
                    also=GEVENT,
                    nginx=f"/{'part' if end else 'deck'}" if shape in ("file", "wrapper") else None,
                    timed=floor,
                    generator="deck_byte_blocks" if floor else None,
                    rounds=3,
                )
            )
    return tuple(found)


def sleeping(clients: int, *goals: Goal) -> Sleeping:
    title = f"0.1 s of sleep, {clients:,} client{'s' if clients > 1 else ''}"
    return Sleeping(
        f"sleep_c{clients}",
        title,
        WAITING,
        "served.shapes:sleep",
        sleeping_metrics(f"sleep_c{clients}", title, f"sleep c{clients}", goals),
        SLEEPING_MEANING,
        clients=clients,
        many=clients >= 1000,
        rounds=2,
    )


SLEEPING_MEANING = (
    "Whether requests that wait for a slow database or another service delay each other. At 100 % and 0.1 s, each user "
    "waits only for the application. A lower share means that requests queue for too few threads."
)


def sleeping_metrics(key: str, title: str, short: str, goals: tuple[Goal, ...]) -> tuple[Metric, ...]:
    return (
        Metric(key, title, short, "% of clients / sleep", True, 1, goals),
        Metric(f"{key}_ok", f"{title}: successful requests", f"{short}, ok", "%", True, 1),
        milliseconds(f"{key}_p50", f"{title}: median response time", f"{short}, p50"),
        milliseconds(f"{key}_p99", f"{title}: 99th percentile", f"{short}, p99"),
    )


def greenlets(clients: int, *goals: Goal) -> Sleeping:
    """As `sleeping`, of those servers that have a greenlet for each request."""
    key = f"gevent_c{clients}"
    title = f"Greenlets: two blocks 0.1 s apart, {clients:,} clients"
    return Sleeping(
        key,
        title,
        GREENLETS,
        "served.shapes:between",
        sleeping_metrics(key, title, f"gevent c{clients}", goals),
        SLEEPING_MEANING,
        among=GREENLET_SERVERS,
        clients=clients,
        many=clients >= 1000,
        rounds=3,
    )


def carried(name: str, title: str, short: str, *, over_unix: bool = False, front: bool = False) -> Carried:
    """The row for blocks of 128 bytes has the name alone."""
    metrics = []
    for size in BLOCK_SIZES:
        key = name if size == BLOCK_SIZES[0] else f"{name}_{size}"
        words = f"2.5 MB in blocks of {size:,} bytes, {title}"
        goals = (FloorTimes(2.0), TimesBest(4.0), AS_THREADS) if size == BLOCK_SIZES[0] and not front else ()
        metrics.append(milliseconds(key, f"{words}: whole response", f"{size} B {short}"))
        metrics.append(milliseconds(f"{key}_app", f"{words}: in the application", f"{size} B {short}, app", *goals))
    return Carried(
        name,
        f"2.5 MB in blocks of 128 bytes to 64 KiB, {title}",
        BLOCKS,
        "served.shapes:words",
        tuple(metrics),
        "How soon a streamed response reaches the client, and how soon its thread is free for the next request. The "
        "block size should not matter.",
        also=GEVENT,
        over_unix=over_unix,
        flags=UWSGI_FLAGS if front else (),
        generator=None if front else "word_blocks",
        rounds=3,
        timed=True,
        front=front,
        sizes=BLOCK_SIZES,
    )


def crowded(
    name: str,
    title: str,
    short: str,
    *,
    what: str = "read",
    path: str = "/list",
    clients: int = 1000,
    pace: int = 100_000,
    size: int | str = files.CROWD_BYTES,
    nginx: str | None = None,
    fits: bool = True,
) -> Crowded:
    """fits: the crowd's responses fit into the memory that a server may use. If they do not, some have to wait in the
    application, and only the memory has a goal."""
    whole = clients * pace / 1e6

    def goals(*those: Goal) -> tuple[Goal, ...]:
        return those if fits else ()

    return Crowded(
        name,
        title,
        CROWDS,
        "served.shapes:crowd",
        (
            Metric(name, f"{title}: throughput kept", f"{short}, pongs", "%", True, 1, goals(AtLeast(90), NoErrors())),
            Metric(
                f"{name}_pace",
                f"{title}: throughput of the slow clients, of {whole:g} MB/s",
                f"{short}, pace",
                "MB/s",
                True,
                1,
                goals(AtLeast(0.95 * whole)),
            ),
            Metric(f"{name}_memory", f"{title}: memory", f"{short}, memory", "MiB", False, 1, (AtMost(CROWD_MEMORY),)),
            Metric(f"{name}_held", f"{title}: threads in use", f"{short}, held", "threads", False, 0, goals(AtMost(0))),
        ),
        "The effect of a crowd of slow clients: the throughput left for quick clients, and the memory and threads that "
        "the crowd occupies.",
        fresh=True,
        many=True,
        rounds=2 if fits else 1,
        among=CROWDED if fits else (TAILRACE, "granian"),
        nginx=nginx,
        what=what,
        crowd_path=path,
        clients=clients,
        pace=pace,
        size=size,
    )


def lateness(name: str, title: str, short: str, *, over_unix: bool, among: tuple[str, ...]) -> Lateness:
    goals = (AtMost(5.0), AtMost(5.0, of=TAILRACE_GEVENT))

    def metric(key: str, what: str) -> Metric:
        words = f"{short}{key.replace('_', ' ')}"
        return Metric(f"{name}{key}", f"{title}: {what}", words, "ms", False, 2, goals)

    return Lateness(
        name,
        title,
        BLOCKS,
        "served.shapes:rhythms",
        (
            metric("", "maximum before a pause"),
            metric("_p99", "99th percentile before a pause"),
            metric("_every", "maximum"),
            metric("_every_p99", "99th percentile"),
        ),
        "The delay of a block of a streamed response between application and client, for any rhythm of blocks.",
        over_unix=over_unix,
        among=among,
    )


FLAT_MEANING = (
    "Whether the server passes a large download on, or collects it in memory first, so that a few such downloads "
    "exhaust the memory."
)


def flat(name: str, title: str, short: str) -> Flat:
    metric = Metric(name, title, short, "MB", False, 1, (AtMost(1.0), NoErrors()))
    return Flat(
        name,
        title,
        SIZE,
        "served.shapes:flat",
        (metric,),
        FLAT_MEANING,
        path=f"/{name.removeprefix('flat_')}",
        rounds=2,
    )
