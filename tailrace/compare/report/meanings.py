"""What a figure tells an operator, for scenarios that do not say it themselves: by the beginning of their names."""

from __future__ import annotations

from tailrace.compare.results import Metric

# The longest beginning that fits is taken.
MEANINGS = {
    "pong": "The application does nothing, so this is the server's own cost: no application on this server is faster.",
    "pong_c1": "One client waits for each answer: the server's own share of the latency of every request.",
    "connections": "Each request opens a connection, as with clients or proxies that do not keep connections alive.",
    "segments": "Each further TCP segment of a small response costs the network and the client another packet.",
    "flask": "A request through Flask: what remains of a server's advantage in a real application.",
    "django": "A request through Django and its usual middleware: what remains of a server's advantage there.",
    "json": "An answer of an API: 100 rows, encoded as JSON by the application.",
    "static": "A file that the server sends without Python. nginx shows what the operating system allows.",
    "static_304": "The client has the file already. Most requests for static files of returning visitors are these.",
    "page": "The application reads a small page from its file and returns it, as template caches and small sites do.",
    "list": "One large block, such as a report or an API's export. What differs is how often servers copy it.",
    "list_discard": "The same to a client that costs nothing, so that the server alone is measured.",
    "file": "The application returns an open file. A server that reads it in Python pays for every block.",
    "wrapper": "The way of PEP 3333 to send a file. A server can use sendfile, so that the bytes never pass Python.",
    "upload": "The application reads a large request body. The time includes how the server buffers it.",
    "words": "A generator of 20,000 small blocks, as templates and CSV exports make. Without "
    "coalescing, each is a write. The second figure is how long the application's thread is occupied.",
    "bytes": "The worst case: a string returned by mistake is iterated byte by byte. It shows the cost of one block.",
    "bare": "A common mistake: the application returns bytes without a list around them.",
    "blocks": "A generator of a few medium blocks. A server can send each by itself, or join them in fewer writes.",
    "late": "A block that the application has yielded, and the client does not have yet: progress bars, server-sent "
    "events and logs depend on it.",
    "sleep": "The application waits for a database or another service. 100 % means that no client waits for a thread.",
    "gevent": "The application waits, in greenlets. 100 % means that no client waits for another one.",
    "streams": "Clients that stay connected for events. The slowest block is what the unluckiest of them sees.",
    "growth": "Requests that wait arrive at an idle server: how long until all of them are in the application.",
    "overload": "More requests than the application can handle. Goodput is what is still answered in time.",
    "processes": "A deployment: how long clients have no server, and what each further worker costs in memory.",
    "crowd": "Slow clients hold connections open. What is left for quick clients, and how much memory the crowd costs.",
    "flat": "A response larger than memory. A server that buffers it whole grows with it.",
    "calls": "Each system call costs time on both sides of the kernel: fewer leave more of a core to the application.",
    "idle": "Memory for each client that keeps its connection open and asks nothing.",
    "startup": "How long a deployment or an autoscaler waits for a new server.",
}
# What a further figure of a scenario means, by the end of its key.
PARTS = {
    "_cost": "Microseconds of a core, the time of the application included.",
    "_p50": "Half of them take longer.",
    "_p99": "One of a hundred takes longer.",
    "_app": "How long the response occupies a thread of the application.",
    "_memory": "What the server needs beyond its idle state.",
    "_held": "Threads of the application that slow clients occupy.",
    "_pace": "What the slow clients receive: less than their pace means that the server starves them.",
    "_refusal": "How long a client waits to be told that the server is full.",
}


def meaning_of(name: str) -> str:
    """The sentence for a scenario, empty where there is none."""
    found = [start for start in MEANINGS if name == start or name.startswith(f"{start}_")]
    return MEANINGS[max(found, key=len)] if found else ""


def part_of(metric: Metric) -> str:
    """The sentence for one figure of a scenario, empty where there is none."""
    return next((text for end, text in PARTS.items() if metric.key.endswith(end)), "")
