"""Rows of the table of scenarios that differ in a few words, the names of its groups, and who takes part in what."""

from __future__ import annotations

from tailrace.compare.goals import AtLeast, AtMost, FloorTimes, NoErrors, Times, TimesBest, Within, WithinBest
from tailrace.compare.peers import NGINX, TAILRACE, TAILRACE_GEVENT, VIEW
from tailrace.compare.results import Goal, Metric
from tailrace.compare.scenarios.crowded import Crowded
from tailrace.compare.scenarios.fetch import Fetch
from tailrace.compare.scenarios.flat import Flat
from tailrace.compare.scenarios.lateness import Lateness
from tailrace.compare.scenarios.rate import Rate
from tailrace.compare.scenarios.sleeping import Sleeping
from tailrace.compare.served import files

SMALL = "Small responses"
FRAMEWORKS = "Frameworks"
LARGE = "Large responses"
BLOCKS = "Many blocks"
WAITING = "Applications that wait"
GREENLETS = "Greenlets"
OVERLOAD = "Overload and processes"
FILES = "Static files"
CROWDS = "Crowds of slow clients"
SIZE = "Responses larger than memory"
COST = "What it costs"

# --response-buffer and 50 MiB, what a crowd of slow clients may cost.
CROWD_MEMORY = 256 + 50
# A round of a crowd takes half a minute; each of these fails in a way of its own.
CROWDED = (TAILRACE, "gunicorn gthread", "granian", "uwsgi http", "waitress")
# The fastest, and the most used.
FRAMEWORK_SERVERS = (TAILRACE, "bjoern", "fastwsgi", "granian", "uwsgi http11", "gunicorn gthread")
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
    title = f"{title}: the server's processor time for one"
    return Metric(f"{key}_cost", title, f"{short}, cost", "us", False, 0, goals)


def frameworks(name: str, title: str, app: str, path: str = "/") -> tuple[Rate, ...]:
    """An application at 1, 4, 16 and 64 connections, its client on the other core and on the server's own. Without
    being asked for, 16 connections from the other core alone are measured."""
    found = []
    for same_core in (False, True):
        for connections in (1, 4, 16, 64):
            key = f"{name}_c{connections}{'_same' if same_core else ''}"
            where = ", same core" if same_core else ""
            load = f"{title}, {connections} connection{'s' if connections > 1 else ''}{where}"
            short = key.replace("_", " ")
            found.append(
                Rate(
                    key,
                    load,
                    FRAMEWORKS,
                    app,
                    (
                        *rate(key, load, short, TimesBest(1.05 if connections >= 16 else 0.98)),
                        cost(key, load, short),
                        *(
                            Metric(f"{key}_{part}", f"{load}: {part}", f"{short}, {part}", "ms", False, 2, (within,))
                            for part, within in (("p50", WithinBest(1.05)), ("p99", WithinBest(1.05)))
                        ),
                    ),
                    path=path,
                    among=FRAMEWORK_SERVERS,
                    asked=same_core or connections != 16,
                    connections=connections,
                    same_core=same_core,
                )
            )
    return tuple(found)


# Who serves files beside the application, by its own options.
FILE_SERVERS = (TAILRACE, VIEW, "granian", "uwsgi http11", "mod_wsgi")
FILE_FLAGS = (
    (TAILRACE, f"--static /files={files.DIRECTORY}"),
    ("granian", f"--static-path-route /files --static-path-mount {files.DIRECTORY}"),
    # Without the second, each response waits for a delayed acknowledgement.
    ("uwsgi http11", f"--static-map /files={files.DIRECTORY} --tcp-nodelay"),
    ("mod_wsgi", f"--url-alias /files {files.DIRECTORY}"),
)


def static(
    name: str, title: str, file: str, times_nginx: float, fields: tuple[str, ...] = (), checked: bool = True
) -> tuple[Rate, ...]:
    """A file that the server itself serves, to 64 connections from the other core and from the server's own."""
    found = []
    for same_core in (False, True):
        key = f"{name}{'_same' if same_core else ''}"
        load = f"{title}, 64 connections{', same core' if same_core else ''}"
        short = key.replace("_", " ")
        goals = (Times(times_nginx, NGINX), Times(3.0, "granian"), Times(3.0, "uwsgi http11"))
        found.append(
            Rate(
                key,
                load,
                FILES,
                "served.shapes:view",
                (*rate(key, load, short, *goals), cost(key, load, short)),
                path=f"/files/{file}",
                nginx=f"/{file}",
                among=FILE_SERVERS,
                flags=FILE_FLAGS,
                asked=True,
                same_core=same_core,
                fields=fields,
                content=file if checked else None,
            )
        )
    return tuple(found)


def milliseconds(key: str, title: str, short: str, *goals: Goal) -> Metric:
    return Metric(key, title, short, "ms", False, 1, goals)


def sleeping(clients: int, *goals: Goal) -> Sleeping:
    title = f"0.1 s of sleep, {clients:,} client{'s' if clients > 1 else ''}"
    metric = Metric(f"sleep_c{clients}", title, f"sleep c{clients}", "% of clients / sleep", True, 1, goals)
    return Sleeping(
        metric.key, title, WAITING, "served.shapes:sleep", (metric,), clients=clients, many=clients >= 1000, rounds=2
    )


def greenlets(clients: int, *goals: Goal) -> Sleeping:
    """As `sleeping`, of those servers that have a greenlet for each request."""
    title = f"Greenlets: two blocks, 0.1 s of sleep between, {clients:,} clients"
    metric = Metric(f"gevent_c{clients}", title, f"gevent c{clients}", "% of clients / sleep", True, 1, goals)
    return Sleeping(
        metric.key,
        title,
        GREENLETS,
        "served.shapes:between",
        (metric,),
        among=GREENLET_SERVERS,
        clients=clients,
        many=clients >= 1000,
        rounds=3,
    )


def words(name: str, title: str, short: str, over_unix: bool) -> Fetch:
    return Fetch(
        name,
        title,
        BLOCKS,
        "served.shapes:words",
        (
            milliseconds(name, f"{title}: whole response", short),
            milliseconds(
                f"{name}_app",
                f"{title}: in the application",
                f"{short}, app",
                FloorTimes(2.0),
                TimesBest(4.0),
                AS_THREADS,
            ),
        ),
        also=GEVENT,
        over_unix=over_unix,
        content="words",
        timed=True,
        generator="word_blocks",
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
    size: int = files.CROWD_BYTES,
    nginx: str | None = None,
    fits: bool = True,
) -> Crowded:
    """fits: the crowd's responses can wait in the memory that a server may take; of those that cannot, some have to
    wait in the application, and nothing is promised but the memory."""
    whole = clients * pace / 1e6

    def goals(*those: Goal) -> tuple[Goal, ...]:
        return those if fits else ()

    return Crowded(
        name,
        title,
        CROWDS,
        "served.shapes:crowd",
        (
            Metric(name, f"{title}: pongs kept", f"{short}, pongs", "%", True, 1, goals(AtLeast(90), NoErrors())),
            Metric(
                f"{name}_pace",
                f"{title}: its pace of {whole:g} MB/s",
                f"{short}, pace",
                "MB/s",
                True,
                1,
                goals(AtLeast(0.95 * whole)),
            ),
            Metric(f"{name}_memory", f"{title}: memory", f"{short}, memory", "MiB", False, 1, (AtMost(CROWD_MEMORY),)),
            Metric(f"{name}_held", f"{title}: threads held", f"{short}, held", "threads", False, 0, goals(AtMost(0))),
        ),
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
            metric("", "the worst before a pause"),
            metric("_p99", "99 % of those before a pause"),
            metric("_every", "the worst"),
            metric("_every_p99", "99 % of all"),
        ),
        over_unix=over_unix,
        among=among,
    )


def flat(name: str, title: str, short: str) -> Flat:
    metric = Metric(name, title, short, "MB", False, 1, (AtMost(1.0), NoErrors()))
    return Flat(name, title, SIZE, "served.shapes:flat", (metric,), path=f"/{name.removeprefix('flat_')}", rounds=2)
