"""A scoreboard and a state for the tests of the status process: what it reads, without a process."""

import contextlib
import os
import secrets
import socket

from tailrace._tailrace import Holder, Scoreboard, SharedNumbers
from tailrace.status import state
from tailrace.status.counts import PARTS, PHASES
from tailrace.status.state import SharedState, State, WorkerState


@contextlib.contextmanager
def holding():
    """Holds connections with a publish bus, in this process: the address where it gives its figures."""
    name = f"tailrace-test-{os.getpid()}-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        made = Holder(listener.fileno(), b"nowhere", write_timeout=5.0, client_connections=0, has_bus=True)
    made.start()
    try:
        yield name
    finally:
        made.stop(1.0)


COUNTERS = Scoreboard(1, 1, "secrets").counters(0)
STATES = Scoreboard(1, 1, "secrets").states(0)
DELIVERIES = Scoreboard(1, 1, "secrets").deliveries(0)
# What a scoreboard has of a request in flight.
REQUEST = {
    "id": 7,
    "request_id": "abc",
    "method": "GET",
    "target": "/a",
    "client": "::1",
    "phase": "running",
    "seconds": 1.25,
    "thread": 42,
}


class Board:
    """A scoreboard of dictionaries."""

    def __init__(self, *places, requests=(), signs=(0, None), deliveries=None, states=None, endpoints=(), recent=None):
        self.places, self.requests, self.signs = list(places), list(requests), signs
        self.delivered, self.stated = deliveries or {}, states or {}
        self.counted, self.ended = list(endpoints), recent or {}
        self.numbers = SharedNumbers()
        self.traces = Scoreboard(1, 1, "secrets").traces

    def counters(self, place, /):
        return {**COUNTERS, **self.places[place]}

    def states(self, place, /):
        return {what: {**each, **self.stated.get(what, {})} for what, each in STATES.items()}

    def deliveries(self, place, /):
        return {group: {**each, **self.delivered.get(group, {})} for group, each in DELIVERIES.items()}

    def in_flight(self, place, /):
        return self.requests if place == 0 else []

    def endpoints(self, place, /):
        return self.counted if place == 0 else []

    def recent(self, place, /):
        return {"slow": [], "broken": [], **(self.ended if place == 0 else {})}

    def signs_of_life(self, place, /):
        return self.signs


def endpoint(name="GET /a", **more):
    """What a scoreboard has of an endpoint with one response."""
    return {
        "endpoint": name,
        "responses": 1,
        **dict.fromkeys(
            (
                *("application_ns", "delivery_ns", "chunked", "failed", "client_disconnected"),
                *("event_streams", "event_stream_ns", "slow"),
                *("grown_bytes", "grown_responses", "grown_variance"),
                *(f"{part}_ns" for part in PARTS),
            ),
            0,
        ),
        "blocks": 1,
        "writes": 1,
        "body_bytes": 1000,
        "paths": {"one-write": 1},
        "times": {"0.001007080078125": 1},
        "total_ns": 1_000_000,
        **more,
    }


def ended(target="/report?x=1", **more):
    """What a scoreboard has of a slow response."""
    return {
        "method": "GET",
        "target": target,
        "endpoint": f"GET {target.partition('?')[0]}",
        "request_id": None,
        "client": "192.0.2.7:4711",
        "status": 200,
        "event_stream": False,
        "ending": "complete",
        "path": "one-write",
        "body_bytes": 5,
        "blocks": 1,
        "writes": 1,
        **dict.fromkeys(PHASES, 0.0),
        "queued": 0.001,
        "application": 2.5,
        "iterating": 0.25,
        "total": 2.751,
        "cpu": 0.5,
        "gc": 0.125,
        "ago": 3.0,
        "worker": 1,
        "pid": 101,
        **more,
    }


def worker(number=1, name=state.SERVING, **more):
    return WorkerState(
        **{
            "number": number,
            "pid": 100 + number,
            "place": number - 1,
            "generation": 1,
            "state": name,
            "since": 5.0,
            "clock": 1_700_000_000.0,
            **more,
        }
    )


def told(*workers, **more):
    return State(
        **{
            "application": "shop:app",
            "listeners": ["http://127.0.0.1:8000"],
            "master": 99,
            "began": 1.0,
            "wanted": len(workers),
            "threads_each": 1,
            "stopping": False,
            "has_served": True,
            "may_hang": True,
            "gevent": False,
            "restarts": {},
            "ended": {},
            "delivered": DELIVERIES,
            "workers": list(workers),
            "counted": 0.0,
            "certificates": [],
            "holder": 0,
            "holder_address": "",
            **more,
        }
    )


def shared(*workers, places=8, **more):
    return SharedState(told(*workers, **more), places)
