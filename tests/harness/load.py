"""A load that checks: callers that ask without pause, each response compared to its last byte, each loss counted.

The application is tests/apps/srv_lossless.py. A loss is whatever a client would have to call a failure:

    refused      the connection was not taken
    unanswered   the connection ended, or was reset, before a byte of the response; no resend is tried
    truncated    it ended, or was reset, within the response
    reset        the response was complete, and then the connection was reset instead of closed
    wrong        another status, length or body than asked for, or no HTTP
    late         no answer within PATIENCE

Each caller is a thread and has one connection at a time. It alone changes its counts; faults are only added.
"""

from __future__ import annotations

import itertools
import re
import select
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from apps.srv_lossless import content

from .addresses import Address
from .tools import need_tool
from .wire import Broken, Client, NotHttp, Response

PATIENCE = 30.0
SHAPES = ("whole", "nap", "blocks", "whole", "pauses", "back")
SIZES = (1, 30, 3000, 1000, 100, 70_000, 2000)


@dataclass(frozen=True)
class Kind:
    """How a caller behaves.

    keeps: it asks again on the same connection as long as the server lets it. pause: seconds between two requests;
    before a request after a pause it looks whether the server has closed meanwhile, as HTTP allows it to.
    split: seconds between the two halves of a request. depth: requests sent at once; those behind a response with
    `Connection: close` are not answered, and count as `behind`.
    """

    name: str
    keeps: bool = True
    pause: float = 0.0
    split: float = 0.0
    depth: int = 1
    shapes: Sequence[str] = SHAPES
    gives_up: bool = False


KEEPING = Kind("keeping")
PAUSING = Kind("pausing", pause=0.02)
SPLITTING = Kind("splitting", split=0.02)
PIPING = Kind("piping", depth=4)
OPENING = Kind("opening", keeps=False)
MIXED = (KEEPING, KEEPING, KEEPING, PAUSING, PAUSING, SPLITTING, SPLITTING, PIPING, OPENING, OPENING)


@dataclass(frozen=True)
class Question:
    """A request to srv_lossless.py, and how its response must be."""

    wire: bytes
    line: str
    framings: tuple[str, ...]
    body: bytes

    @classmethod
    def of(cls, shape: str, text: str, size: int, close: bool) -> Question:
        """Asks for the text, repeated and cut to this size, in one of the application's shapes."""
        body = content(text, size)
        fields = "Host: test\r\n" + "Connection: close\r\n" * close
        line, rest = f"GET /{shape}/{text}/{size} HTTP/1.1", b""
        if shape == "back":
            line, rest = f"POST /back/{text} HTTP/1.1", body
            fields += f"Content-Length: {size}\r\n"
        # Blocks that are made at once, while other requests wait, are sent with their length.
        framings = ("chunked", "length") if shape == "blocks" else ("length",)
        return cls(f"{line}\r\n{fields}\r\n".encode() + rest, line, framings, body)

    def is_answered_by(self, response: Response) -> bool:
        """True when every byte is right; the framing itself was checked when it was read."""
        is_framed = response.status == 200 and response.framing in self.framings
        return is_framed and response.body == self.body


@dataclass(frozen=True)
class Fault:
    """A loss. worker: that answered last on the connection, None before the first answer on it."""

    what: str
    caller: str
    request: str
    worker: int | None
    port: int
    at: str
    detail: str


class Load:
    """Callers for the length of a `with`. `allowed` tells which other responses are good ones, too."""

    def __init__(
        self,
        address: Address,
        kinds: Sequence[Kind] = MIXED,
        allowed: Callable[[Response], bool] = lambda response: False,
    ) -> None:
        self.address = address
        self.allowed = allowed
        self.faults: list[Fault] = []
        self.excused = 0
        self.callers = [Caller(self, number, kind) for number, kind in enumerate(kinds)]
        self.stopping = threading.Event()
        self.begun = 0.0

    def __enter__(self) -> Load:  # noqa: PYI034 - typing.Self is of Python 3.11
        self.begun = time.monotonic()
        for caller in self.callers:
            caller.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stopping.set()
        for caller in self.callers:
            caller.join()
        if error is None:
            self.check()
            self._adds_up()

    @property
    def counts(self) -> Counter[str]:
        """sent, answered, other (the allowed ones), behind, connections, closed while idle; losses by their names."""
        found = Counter(fault.what for fault in self.faults)
        for caller in self.callers:
            found.update(caller.counts)
        return found

    def check(self) -> None:
        """Fails with the losses, if there are any."""
        if self.faults:
            shown = "\n".join(str(fault) for fault in self.faults[:10])
            pytest.fail(f"{dict(self.counts)}\n{shown}", pytrace=False)

    def excuse(self, worker: int) -> int:
        """The losses on connections of this worker are no faults, since it has died; how many there have been."""
        lost = [fault for fault in self.faults if fault.worker == worker]
        self.faults = [fault for fault in self.faults if fault.worker != worker]
        self.excused += len(lost)
        return self.excused

    def _adds_up(self) -> None:
        counts = self.counts
        if counts["sent"] != counts["answered"] + counts["other"] + counts["behind"] + self.excused:
            pytest.fail(f"requests without answer: {dict(counts)}", pytrace=False)

    def goes_on(self, more: int = 5) -> None:
        """Returns once each caller that has not given up has had so many more answers; fails when there are losses."""
        goals = [(caller, caller.answered + more) for caller in self.callers]
        end = time.monotonic() + 2 * PATIENCE
        while any(caller.answered < goal and not caller.gave_up for caller, goal in goals):
            self.check()
            if time.monotonic() > end:
                pytest.fail(f"no further answers: {dict(self.counts)}")
            time.sleep(0.005)
        self.check()

    def workers(self) -> list[int | None]:
        """Who answered last on each caller's connection; None where that is not known yet."""
        return [caller.worker for caller in self.callers]


class Caller(threading.Thread):
    """One of them: asks, compares, asks again."""

    def __init__(self, load: Load, number: int, kind: Kind) -> None:
        super().__init__(name=f"{kind.name} {number}", daemon=True)
        self.load, self.number, self.kind = load, number, kind
        self.counts: Counter[str] = Counter()
        self.client: Client | None = None
        self.worker: int | None = None
        self.gave_up = False

    @property
    def answered(self) -> int:
        """Responses that it got."""
        return self.counts["answered"] + self.counts["other"]

    def run(self) -> None:
        for turn in itertools.count(self.number * 100, self.kind.depth):
            if self.load.stopping.is_set() or self.gave_up:
                break
            self._ask([self._question(turn + ahead) for ahead in range(self.kind.depth)])
            if self.kind.pause:
                self.load.stopping.wait(self.kind.pause)
        self._close()

    def _question(self, turn: int) -> Question:
        shapes = self.kind.shapes
        text, size = f"{self.number}.{turn}.", SIZES[turn % len(SIZES)]
        return Question.of(shapes[turn % len(shapes)], text, size, close=not self.kind.keeps)

    def _ask(self, questions: list[Question]) -> None:
        try:
            client = self._connection()
        except OSError as error:
            self._fault("refused", questions[0], repr(error))
            return
        wire = b"".join(question.wire for question in questions)
        self.counts["sent"] += len(questions)
        if self.kind.split:
            client.send(wire[: len(wire) // 2])
            self.load.stopping.wait(self.kind.split)
            wire = wire[len(wire) // 2 :]
        # Whether it can be sent shows in the answer, which may be there already.
        client.send(wire)
        for behind, question in zip(range(len(questions) - 1, -1, -1), questions, strict=True):
            response = self._response(client, question)
            if response is None:
                return
            if "close" in response.connection:
                self.counts["behind"] += behind
                self._must_end(client, question)
                return
        if client.buffer:
            self._fault("wrong", questions[-1], f"after the response: {client.buffer[:80]!r}")

    def _response(self, client: Client, question: Question) -> Response | None:
        try:
            response = client.response()
        except Broken as broken:
            begun = broken.response is not None or broken.rest
            self._fault("truncated" if begun else "unanswered", question, str(broken))
        except TimeoutError:
            self._fault("late", question, f"got {client.buffer[:80]!r}")
        except (NotHttp, OSError) as error:
            self._fault("wrong", question, repr(error))
        else:
            if question.is_answered_by(response):
                self.worker = int(response["x-worker"])
                self.counts["answered"] += 1
                return response
            if self.load.allowed(response):
                self.counts["other"] += 1
                return response
            self._fault("wrong", question, f"{response}"[:1000])
        return None

    def _must_end(self, client: Client, question: Question) -> None:
        """The server has said `Connection: close`: its end must come, and as an end."""
        try:
            rest = client.rest()
        except TimeoutError:
            self._fault("late", question, "the end of the connection")
        else:
            if rest or client.reset:
                self._fault("reset" if client.reset else "wrong", question, f"after the response: {rest[:80]!r}")
            self._close()

    def _connection(self) -> Client:
        if self.client and self.kind.pause and self._was_closed(self.client):
            self.counts["closed while idle"] += 1
            self._close()
        if self.client is None:
            self.client = Client(self.load.address, PATIENCE)
            self.counts["connections"] += 1
        return self.client

    @staticmethod
    def _was_closed(client: Client) -> bool:
        poll = select.poll()
        poll.register(client.sock, select.POLLIN)
        return bool(poll.poll(0))

    def _close(self) -> None:
        if self.client:
            self.client.close()
        self.client, self.worker = None, None

    def _fault(self, what: str, question: Question, detail: str) -> None:
        port = self.client.sock.getsockname()[1] if self.client and self.load.address.port else 0
        at = f"{time.strftime('%H:%M:%S')}, {time.monotonic() - self.load.begun:.3f} s after the start"
        self.load.faults.append(Fault(what, self.name, question.line, self.worker, port, at, detail))
        self.gave_up = self.kind.gives_up
        self._close()


# The rest of a script that has set `expected`. Compares every body; wrk itself counts what is wrong with the
# connections. `done` runs in another Lua state than the threads.
COMPARE = """
local threads = {}
bad, seen = 0, 0
function setup(thread) table.insert(threads, thread) end
function response(status, headers, body)
    seen = seen + 1
    if status ~= 200 or body ~= expected then bad = bad + 1 end
end
function done(summary)
    for _, thread in ipairs(threads) do
        print("seen " .. thread:get("seen") .. " bad " .. thread:get("bad"))
    end
    for _, kind in ipairs({"connect", "read", "write", "status", "timeout"}) do
        print(kind .. " " .. summary.errors[kind])
    end
end
"""
# A delay, so that wrk leaves something of the processor to the processes that are to start beside it.
SCRIPT = f"""
local expected = string.rep("wrk.", 1000)
function init() request = function() return wrk.format("GET", "/whole/wrk./4000") end end
function delay() return 4 end
{COMPARE}"""
KINDS_OF_ERROR = ("connect", "read", "write", "status", "timeout")


class Wrk:
    """wrk beside the callers, for the length of a `with`; at its end it must have seen no error of any kind."""

    def __init__(self, address: Address, directory: Path, connections: int = 8) -> None:
        script = directory / "wrk.lua"
        script.write_text(SCRIPT)
        wrk, count = need_tool("wrk"), f"-c{connections}"
        self.command = [wrk, "-t1", count, "-d600s", "--timeout", f"{PATIENCE:g}s", "-s", str(script), address.url]

    def __enter__(self) -> Wrk:  # noqa: PYI034 - typing.Self is of Python 3.11
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.process.send_signal(signal.SIGINT)
        report, _ = self.process.communicate(timeout=PATIENCE)
        if error is None:
            found = re.search(r"^seen (\d+) bad (\d+)", report, re.MULTILINE)
            errors = dict(re.findall(r"^(connect|read|write|status|timeout) (\d+)", report, re.MULTILINE))
            assert found, report
            assert (found[2], errors) == ("0", dict.fromkeys(KINDS_OF_ERROR, "0")), report
            assert int(found[1]) > 0
