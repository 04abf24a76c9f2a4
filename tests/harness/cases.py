"""A table of requests and what must become of them, each tried three ways.

The ways: whole, byte by byte, and with another request behind.

After the answers a *canary* request tells whether the connection lives. In the third way the canary is in the same
segment as the case: after a refusal it must stay unanswered, or somebody else's request was smuggled through.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from .addresses import Address
from .wire import Broken, Client, Response

CANARY = b"GET /canary HTTP/1.1\r\nHost: canary\r\nConnection: close\r\n\r\n"
WHOLE, BYTES, BEHIND = "whole", "bytewise", "with-a-request-behind"
# Above this size a case is not sent byte by byte but in pieces.
PIECES = 2000

Check = Callable[[Response], None]


@dataclass(frozen=True)
class Answer:
    """What one final response must be: its status, and what the application saw; `None`: it was not called."""

    status: int
    saw: dict[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """Answers in order, then what becomes of the connection: `open` or `closed`."""

    answers: tuple[Answer, ...]
    then: str


@dataclass(frozen=True)
class Case:
    """`wire` is sent; `outcome` must follow. `rfc` names the rule, `why` what the id cannot say."""

    id: str
    rfc: str
    wire: bytes
    outcome: Outcome
    why: str = ""
    half_close: bool = False
    methods: tuple[str, ...] = ()
    ways: tuple[str, ...] = field(default=(WHOLE, BYTES, BEHIND))


def saw(then: str = "open", **keys: Any) -> Outcome:
    """The application is called, has seen these environ keys, and the connection lives on."""
    return each(keys, then=then)


def each(*requests: dict[str, Any], then: str = "open") -> Outcome:
    """Several requests, each answered with 200, in order, with what the application saw of each."""
    return Outcome(tuple(Answer(200, request) for request in requests), then)


def refused(status: int = 400, *, behind: dict[str, Any] | None = None) -> Outcome:
    """This status, the application not called, the connection closed; `behind`: after this request, which is served."""
    served = () if behind is None else (Answer(200, behind),)
    return Outcome((*served, Answer(status)), "closed")


def case(
    id: str,
    rfc: str,
    wire: bytes,
    outcome: Outcome,
    why: str = "",
    half_close: bool = False,
    methods: Sequence[str] = (),
    ways: Sequence[str] | None = None,
) -> Case:
    """A case, tried in all ways that make sense for it unless `ways` names some."""
    if ways is None:
        # Nothing can follow what is cut off, and what follows a cut-off head would complete it.
        ways = (WHOLE, BYTES) if half_close else (WHOLE, BYTES, BEHIND)
    return Case(id, rfc, wire, outcome, why, half_close, tuple(methods), tuple(ways))


def request(
    line: bytes = b"GET / HTTP/1.1", *fields: bytes, host: bytes | None = b"Host: test", body: bytes = b""
) -> bytes:
    """A request head, with a good Host unless told otherwise, and whatever shall follow it."""
    lines = [line, *([host] if host is not None else []), *fields, b"", b""]
    return b"\r\n".join(lines) + body


def over(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Parametrizes a test over cases and ways."""
    ids = [case.id for case in cases]
    doubles = {name for name in ids if ids.count(name) > 1}
    assert not doubles, f"two cases have the id {doubles}"
    rows = [pytest.param(case, way, id=f"{case.id}-{way}") for case in cases for way in case.ways]
    return pytest.mark.parametrize(("case", "way"), rows)


def check(case: Case, way: str, address: Address) -> None:
    """Sends the case and compares what happened with its outcomes."""
    answers, then = _observe(case, way, address)
    if reason := _difference(case.outcome, answers, then, case.half_close):
        pytest.fail(
            f"{case.id} (RFC {case.rfc}) {case.why}\nsent {case.wire[:600]!r}\n{reason}\n"
            f"got {[(answer.status, answer.fields, answer.body[:300]) for answer in answers]}, then {then}",
            pytrace=False,
        )


def _observe(case: Case, way: str, address: Address) -> tuple[list[Response], str]:
    methods = list(case.methods or (case.wire.lstrip(b"\r\n").partition(b" ")[0].decode("latin-1"),))
    old = case.wire.lstrip(b"\r\n").partition(b"\r\n")[0].endswith(b"HTTP/1.0")
    expected = len(case.outcome.answers)
    answers: list[Response] = []
    with Client(address) as client:
        if way == BYTES:
            client.send(case.wire, 1 if len(case.wire) < PIECES else 997)
        else:
            client.send(case.wire + (CANARY if way == BEHIND else b""))
        if case.half_close:
            client.finish_sending()
        asked = way == BEHIND or case.half_close
        while True:
            if len(answers) >= expected and not asked:
                asked = True
                client.send(CANARY)
            if client.has_ended():
                return answers, "closed"
            index = len(answers)
            method = methods[min(index, len(methods) - 1)]
            head = client.head()
            if ("X-Path", "/canary") in head.fields:
                client.body_of(head)
                client.at_end()
                return answers, "open"
            if head.status < 200:
                continue
            try:
                response = client.body_of(head, method, "1.0" if old and index == 0 else "1.1")
            except Broken as broken:
                pytest.fail(f"{case.id}: {broken}", pytrace=False)
            answers.append(response)
            if not old and response.framing != "close" and "close" not in response.connection:
                continue
            # RFC 9112 section 9.6: who has said close sends no further response.
            if "close" in response.connection or response.framing == "close":
                client.at_end()
                return answers, "closed"


def _difference(outcome: Outcome, answers: list[Response], then: str, half_closed: bool) -> str:
    if len(answers) != len(outcome.answers):
        return f"{len(outcome.answers)} responses, not {len(answers)}"
    if outcome.then != then:
        return f"the connection must be {outcome.then}, is {then}"
    for expected, got in zip(outcome.answers, answers, strict=True):
        if got.status != expected.status:
            return f"status {expected.status}, not {got.status}"
        called = "X-Path" in got
        if called is not (expected.saw is not None):
            return f"the application must{' not' if called else ''} be called"
        if not called and not got.body and got.status >= 400 and got.framing == "close":
            return "an error response must have a length"
        if expected.saw and got.body and (reason := _unseen(expected.saw, json.loads(got.body))):
            return reason
    if (
        then == "closed"
        and not half_closed
        and answers
        and answers[-1].version == "1.1"
        and "close" not in answers[-1].connection
    ):
        return "who closes says so: Connection: close (RFC 9112 section 9.6)"
    return ""


def _unseen(expected: dict[str, Any], environ: dict[str, Any]) -> str:
    for key, value in expected.items():
        got = environ.get(key)
        matches = value.fullmatch(got or "") if isinstance(value, re.Pattern) else got == value
        if not matches:
            return f"the application must see {key}={value!r}, saw {got!r}"
    return ""
