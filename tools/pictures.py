"""Draws the pictures of the manual, docs/images/*.svg. Signals, options, limits and phases come from the sources, and a
reload from the master's plan; where a picture does not agree with them, ValueError or KeyError. `--check` only says
whether the files are up to date.

python tools/pictures.py [--check]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from drawing import EDGE, WIDTH, Drawing, same

from tailrace._tailrace import PHASES
from tailrace.cli.options import BY_NAME
from tailrace.master.loop import SIGNALS
from tailrace.master.plan import Drain, Fork, Plan, Reloaded
from tailrace.master.workers import Worker
from tailrace.worker.report import STACKS

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"


def source(path: str, pattern: str) -> list[Any]:
    """What the pattern finds in a source file. Raises ValueError if that is nothing."""
    if not (found := re.findall(pattern, (ROOT / path).read_text("utf-8"))):
        raise ValueError(f"{path} has nothing like {pattern}")
    return found


def whole(path: str, pattern: str) -> int:
    """The only integer that the pattern finds in a source file."""
    (found,) = source(path, pattern)
    return int(found.replace("_", ""))


def option(name: str) -> str:
    """An option as on the command line. Raises KeyError if there is none."""
    return f"--{BY_NAME[name].name.replace('_', '-')}"


def size(count: int) -> str:
    """Bytes in the largest unit that divides them."""
    return f"{count >> 30} GiB" if count % (1 << 30) == 0 else f"{count >> 20} MiB"


# Processes and signals

TO_MASTER: Final = {
    "TERM, INT": "finish requests, stop",
    "QUIT": "stop now",
    "HUP": "reload the code",
    "USR2": "upgrade: new master",
    "USR1": "reopen log files",
    "TTIN, TTOU": "a worker more, less",
    "URG": "log greenlets",
}
TO_WORKER: Final = {
    "TERM": "finish requests, exit",
    "QUIT": "exit now",
    "USR1": "reopen log files",
    "URG": "log greenlets",
    STACKS.name.removeprefix("SIG"): "it hangs: log stacks",
    "KILL": "hangs, or exits too late",
}
TO_COMPANION: Final = {"USR1": "reopen log files", "KILL": "exits too late"}


def processes() -> Drawing:
    """Who sends which signal to whom."""
    names = [name for key in TO_MASTER for name in key.split(", ")]
    same("signals to the master", names, {each.name[3:] for each in SIGNALS} - {"CHLD"})
    sent = source("tailrace/master/loop.py", r"\.send\((?:signal\.SIG|report\.)(\w+)\)")
    same("signals to workers", TO_WORKER, {STACKS.name[3:] if name == "STACKS" else name for name in sent})
    same("signals to others", TO_COMPANION, source("tailrace/master/companion.py", r"os\.kill\(.*SIG(\w+)\)"))
    drawing = Drawing("Which signal goes where")
    y = signals(drawing, 44, "you", {("master",): told(TO_MASTER)})
    trial = ["the same signals;", "*TERM* if it does worse"]
    companion = [*told(TO_COMPANION), "its pipe closes: exit"]
    others = {("workers",): told(TO_WORKER), ("worker", "on trial"): trial, ("status,", "holder"): companion}
    y = signals(drawing, y + 14, "master", others)
    drawing.lines(
        EDGE,
        y + 24,
        f"A worker is on trial during a reload with {option('reload_trial')}.",
        f"A status process exists with {option('status')}, {option('haproxy_agent')}",
        f"or {option('otlp_endpoint')}, a holder once a connection is held.",
        f"URG needs {option('gevent')}.",
    )
    return drawing


def told(signals: dict[str, str]) -> list[str]:
    """A line for each signal."""
    return [f"*{name}* {effect}" for name, effect in signals.items()]


def signals(drawing: Drawing, top: float, sender: str, receivers: dict[tuple[str, ...], list[str]]) -> float:
    """Draws arrows from a sender to receivers. Returns where they end."""
    y = top
    for (title, *more), texts in receivers.items():
        drawing.box(322, y, 82, 24 * len(texts) + 10, title, *more)
        for text in texts:
            y += 24
            drawing.text(106, y - 4, text, small=True, room=210)
            drawing.arrow(96, y, 320, y, "" if text.startswith("*") else "dash")
        y += 20
    drawing.box(EDGE, top, 78, y - top - 10, sender)
    return y - 10


# A reload

OLD, NEW = 1, 2
LOADING, DRAINING, TRIAL, REJECTED, BEFORE = 4, 4, 10, 5, 2
"""Seconds that a worker of the picture loads, drains, is on trial, and until its trial fails; and before the reload."""


class Course(NamedTuple):
    """What the master's plan makes of a reload in second 0. states: of each worker, by generation and number, in each
    second. events: when they came."""

    states: dict[tuple[int, int], dict[int, str]]
    events: dict[str, int]


def course(*, loads: bool, is_better: bool = True) -> Course:
    """Two workers, of which the successors load or not, and pass their trial or not."""
    plan, events = Plan(2, 8, 20.0, TRIAL), {"HUP": 0}
    states: dict[tuple[int, int], dict[int, str]] = {}
    told: dict[Worker, int] = {}
    for now in range(-BEFORE - 1, 30):
        if now == 0:
            plan.reload(now)
        for each in list(plan.workers):
            has_loaded = each.is_booting and (now < 0 or now >= each.forked + LOADING)
            if has_loaded and (loads or now < 0):
                plan.ready(each, now)
            elif has_loaded or (each in told and now >= told[each] + DRAINING):
                plan.ended(each, now)
        if plan.trial_ends is not None and now >= plan.trial_ends - (0 if is_better else TRIAL - REJECTED):
            (plan.accept if is_better else plan.reject)()
            events["verdict"] = now
        for action in plan.next(now):
            if isinstance(action, Fork):
                plan.forked(Worker(1, now, number=action.number, place=action.place, generation=action.generation))
            elif isinstance(action, Drain):
                told[action.worker] = now
            elif isinstance(action, Reloaded):
                events["reloaded"] = now
        for each in plan.workers:
            state = "half" if each.is_booting else "on" if each.is_serving else "none"
            states.setdefault((each.generation, each.number), {})[now] = state
    return Course(states, events)


def reload() -> Drawing:
    """Three reloads: one that succeeds, and two that leave the old workers."""
    drawing = Drawing("A reload of two workers, over time")
    x = float(EDGE)
    for kind, text in (("half", "loading"), ("on", "serving"), ("none", "draining: finishes requests")):
        drawing.rect(x, 42, 14, 12, kind)
        drawing.text(x + 20, 53, text, small=True)
        x += 90
    hup, trial = ("*HUP*: a worker loads the", "new code"), ("It serves, on trial, beside", "all old workers")
    y = panel(
        drawing,
        74,
        course(loads=True),
        {
            "HUP": hup,
            "ready": trial,
            "verdict": ("*Trial passed*: one old worker", "drains, a second one loads"),
            "reloaded": ("It serves: *reload complete*;", "the last old worker drains"),
        },
    )
    y = panel(
        drawing, y, course(loads=False), {"HUP": hup, "ended": ("*It does not load*: it exits,", "the old ones stay")}
    )
    failed = {"HUP": hup, "ready": trial, "verdict": ("*It does worse*: it drains, the", "old ones stay")}
    y = panel(drawing, y, course(loads=True, is_better=False), failed)
    drawing.lines(
        EDGE,
        y,
        f"Without {option('reload_trial')}, an old worker drains as soon as",
        "its successor serves.",
    )
    return drawing


def panel(drawing: Drawing, top: float, course: Course, labels: Mapping[str, tuple[str, ...]]) -> float:
    """A reload from the top to the bottom, with a column for each worker. Returns where the next one begins."""
    new = course.states[NEW, 1]
    events = {**course.events, "ready": min((at for at in new if new[at] == "on"), default=0), "ended": max(new) + 1}
    drained = [max(row) + 1 for row in course.states.values() if row[max(row)] == "none"]
    last = max([*drained, *(events[name] + 4 for name in labels)])
    origin = top + 12 + BEFORE * 10
    for name, texts in labels.items():
        y = origin + 10 * events[name]
        drawing.line(EDGE, y, WIDTH - EDGE, y, "dash")
        drawing.lines(EDGE, y + 15, *texts, room=205)
    for (generation, number), row in course.states.items():
        x = 226 + 46 * (2 * (generation - OLD) + number - 1)
        drawing.text(x + 20, top + 4, f"{'old' if generation == OLD else 'new'} {number}", small=True, anchor="middle")
        for kind in ("half", "on", "none"):
            times = [at for at in row if row[at] == kind and -BEFORE <= at < last]
            if times:
                drawing.rect(x, origin + 10 * times[0], 40, 10 * len(times), kind)
    return origin + 10 * last + 30


# The phases of a request

MOMENTS: Final = (
    "a proxy passes it on",
    "request head complete",
    "request complete",
    "a thread starts on it",
    "first block",
    "application finished",
    "kernel has all bytes",
)
"""In their order, at these heights of the picture."""
HEIGHTS: Final = (64, 104, 144, 190, 240, 330, 370)
PLACES: Final = {
    "proxied": (0, HEIGHTS[0], HEIGHTS[1]),
    "queued": (0, HEIGHTS[2], HEIGHTS[3]),
    "application": (0, HEIGHTS[3], HEIGHTS[4]),
    "iterating": (0, HEIGHTS[4], HEIGHTS[5]),
    "total": (2, HEIGHTS[2], HEIGHTS[6]),
    "interpreter": (1, 174, 206),
    "cpu": (1, 212, 264),
    "gc": (1, 236, 260),
    "blocked": (1, 270, 302),
}
"""Of each phase: its column, and where it begins and ends."""


def phases() -> Drawing:
    """The phases of a request by their names."""
    same("phases", PLACES, (name for name, _, _ in PHASES))
    same("parts", (name for name in PLACES if PLACES[name][0] == 1), (name for name, is_part, _ in PHASES if is_part))
    drawing = Drawing("The phases of a request")
    for text, y in zip(MOMENTS, HEIGHTS, strict=True):
        drawing.line(EDGE, y, WIDTH - EDGE, y, "dash")
        drawing.lines(EDGE, y + 15, text, room=150)
    for name, (column, top, end) in PLACES.items():
        x, width = ((168, 92), (266, 88), (360, 44))[column]
        inset = 8 * (name == "gc")
        drawing.rect(x + inset, top, width - 2 * inset, end - top, "half" if column != 1 else "box")
        middle = top + 17.0 if name == "cpu" else (top + end) / 2 + 5
        drawing.text(x + width / 2, middle, f"*{name}*", anchor="middle", room=width)
    drawing.lines(
        EDGE,
        HEIGHTS[-1] + 42,
        "Gray: sums of short times in no order. In the rest, the",
        "application waits: for a database, a lock, the GIL.",
        "interpreter: the server waits for the GIL, also when queued.",
        "proxied needs a header, X-Request-Start.",
    )
    return drawing


# Memory


def memory() -> Drawing:
    """Where the bytes of slow clients are, and what happens at each limit."""
    config = "crates/server/src/config.rs"
    client = whole(config, r"CLIENT_MEMORY: usize = (\d+) << 20") << 20
    if f"Default: {size(client)}." not in BY_NAME["client_memory"].help:
        raise ValueError("--client-memory has another default than the core")
    shares = dict(
        source(config, r"(\w+): at_most\(.*client_memory / (\d+)\)") + source(config, r"(\w+): client_memory / (\d+)")
    )
    most = dict(source(config, r"(\w+): at_most\((\d+) << 20"))

    def share(name: str) -> str:
        bytes_ = min(int(most.get(name, client >> 20)) << 20, client // int(shares[name]))
        return f"{size(bytes_)} (1/{shares[name]})"

    times, least = source(
        "crates/wsgi/src/runtime/settings.rs", r"max_body\.saturating_mul\((\d+)\)\.max\((\d+) << 30\)"
    )[0]
    small = whole("crates/server/src/request/spool.rs", r"const SMALL: usize = (\d+) \* 1024")
    patience = whole(
        "crates/server/src/connection/backpressure.rs", r"const PATIENCE: Duration = Duration::from_millis\((\d+)\)"
    )
    part = whole("crates/server/src/response/spill.rs", r"const SHARE: u64 = (\d+)")
    unsent = whole("tailrace/system/sockets.py", r"_NOT_SENT: Final = (\d+) \* 1024")
    spill, write = BY_NAME["response_spill"], BY_NAME["write_timeout"]
    drawing = Drawing("Memory for slow clients, per worker")
    drawing.box(
        EDGE,
        42,
        WIDTH - 2 * EDGE,
        62,
        f"{option('client_memory')}: {size(client)} for all of them",
        "less in a small container; beyond it, the oldest",
        "incomplete requests get 503",
    )
    columns = (
        (
            "request body",
            ("client",),
            "",
            ("socket", "not read while the body", "is written to a file"),
            "",
            ("memory", f"one body: {share('body_memory')}", f"all: {share('body_buffer')}"),
            "beyond",
            ("files in TMPDIR", f"all: {times} times {option('max_body')},", f"at least {least} GiB"),
            "beyond",
            ("503", "for the oldest incomplete", "uploads; disk full: 507"),
        ),
        (
            "response",
            ("application",),
            "",
            ("socket", f"the kernel takes {unsent} KiB", "that it has not sent yet"),
            "beyond",
            ("memory", f"one response: {share('response_queue')}", f"all: {share('response_buffer')}"),
            f"after up to {patience} ms",
            (
                "files in TMPDIR",
                f"{option('response_spill')}: {size(spill.default)}",
                f"one unfinished: 1/{part} of it",
            ),
            "beyond",
            (
                "the thread waits",
                "for its client; stalled for",
                f"{option('write_timeout')} ({write.default:g} s): cut",
            ),
        ),
    )
    for x, (head, *steps) in zip((EDGE, 214), columns, strict=True):
        drawing.text(x, 130, f"*{head}*")
        y = 140.0
        for step in steps:
            if isinstance(step, str):
                drawing.arrow(x + 22, y, x + 22, y + 28)
                drawing.lines(x + 32, y + 18, step)
                y += 30
            else:
                height = 30 if len(step) == 1 else 64
                drawing.box(x, y, 190, height, *step)
                y += height + 2
    drawing.lines(EDGE, drawing.bottom + 24, f"A request body of up to {small} KiB stays in memory.")
    return drawing


# Proxies

TRUSTED: Final = "10.0.0.0/8"
SPOOFED, CLIENT, BALANCER, PROXY = "192.0.2.66", "203.0.113.7", "10.0.0.2", "10.0.0.1"
FORWARDED_FOR: Final = f"{SPOOFED}, {CLIENT}, {BALANCER}"


def proxies() -> Drawing:
    """How the client is found in X-Forwarded-For."""
    drawing = Drawing("X-Forwarded-For is read from the right")
    y = 44
    hops = (
        (f"client {CLIENT}", f"X-Forwarded-For: *{SPOOFED}* (forged)"),
        (f"load balancer {BALANCER}", f"{SPOOFED}, *{CLIENT}*"),
        (f"nginx {PROXY}", f"{SPOOFED}, {CLIENT}, *{BALANCER}*"),
    )
    for name, sent in hops:
        drawing.box(EDGE, y, WIDTH - 2 * EDGE, 30, name)
        drawing.arrow(40, y + 32, 40, y + 64)
        drawing.text(52, y + 52, sent, small=True)
        y += 66
    drawing.box(EDGE, y, WIDTH - 2 * EDGE, 48, "Tailrace", f"{option('trusted_proxies')} {TRUSTED}")
    y += 84
    verdicts = (
        (SPOOFED, "none", "not read"),
        (CLIENT, "on", "the client"),
        (BALANCER, "box", "trusted"),
        (PROXY, "box", "peer, trusted"),
    )
    for place, (address, kind, verdict) in enumerate(verdicts):
        x = EDGE + 98 * place
        drawing.rect(x, y, 94, 30, kind if kind != "on" else "half")
        drawing.lines(x + 47, y + 19, f"*{address}*" if kind == "on" else address, anchor="middle", room=92)
        drawing.lines(x + 47, y + 47, verdict, anchor="middle")
    for step, place in enumerate((3, 2, 1)):
        drawing.lines(EDGE + 98 * place + 47, y - 8, f"{step + 1}.", anchor="middle")
    drawing.arrow(WIDTH - EDGE, y - 22, EDGE + 98, y - 22)
    drawing.text(EDGE, y + 78, f"REMOTE_ADDR = *{CLIENT}*")
    drawing.lines(
        EDGE,
        y + 102,
        "Each proxy appends the address that connected to it. The",
        "client is the first one from the right that is not trusted.",
    )
    return drawing


PICTURES: Final[dict[str, Callable[[], Drawing]]] = {
    "signals": processes,
    "reload": reload,
    "phases": phases,
    "memory": memory,
    "forwarded-for": proxies,
}


def main() -> int:
    """Writes or checks the files. Returns the exit status."""
    stale = []
    for name, draw in PICTURES.items():
        path, text = IMAGES / f"{name}.svg", draw().svg()
        if "--check" not in sys.argv[1:]:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            stale.append(path.name)
    if stale:
        print(
            f"docs/images: {', '.join(stale)}: out of date; run `.venv/bin/python tools/pictures.py`", file=sys.stderr
        )
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
