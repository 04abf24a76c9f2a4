"""The bus process: it sends what was published on this server to the others, and brings theirs to the holder.

It keeps nothing that the holder does not have, so it may end at any time. On the bus, a message is a letter, the
name of a server, and:

- `D`: a document of that server: its number, a line end, and the document.
- `H`: what that server has: the numbers of the last and the first document.
- `A`: a request that this server sends its documents again, from a number on.
- `?`: a request of that server that all others say what they have.

Threads: the main one waits for the end; one sends; one receives.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NoReturn

from tailrace.bus import services
from tailrace.bus.order import Order
from tailrace.bus.services import Service, ServiceError
from tailrace.errors import denial
from tailrace.logs import log
from tailrace.system.bus_address import Address
from tailrace.worker import companion

# How long the process may take to send what it has when it is told to end (seconds).
GRACE: Final = 3.0
# How often a server says what it has (seconds). What it says comes back, so it knows that it hears the others.
_HEARTBEAT: Final = 5.0
_DEAF: Final = 15.0
# How often it says that at most if others ask, and how often it sends documents again (seconds).
_LEAST: Final = 0.5
# How long that may take until others may ask for the same again (seconds): shorter than they wait.
_LONGEST_RESENDING: Final = 5.0
# How often the log says that messages were ignored, or publications lost (seconds).
_LOG_PAUSE: Final = 60.0
# The pause before the service is tried again: it doubles (seconds).
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
# How long the receiving thread waits for messages before it looks at what is due (seconds).
_TICK: Final = 0.5
# How long the holder may take to answer at the start (seconds): the master may have to start it.
_HOLDER_TIMEOUT: Final = 30.0
# Bytes of documents that are sent in one go.
_BATCH: Final = 1 << 20
# How long the end waits for what the holder is still sending (seconds).
_LAST: Final = 0.05
# A message: with a document (MAX_DOCUMENT of crates/holder/src/publication.rs), and what it begins with.
_MAX_MESSAGE: Final = (1 << 20) + 100
_FORM: Final = re.compile(rb"([?ADH])([0-9a-f]{32})((?: [0-9]{1,18}){0,2})(?:\n|\Z)")
_NUMBERS: Final = {b"?": 0, b"A": 1, b"D": 1, b"H": 2}
# Length of the head of a message of the holder.
_HEAD: Final = 5


def work(address: Address, holder: bytes, name: str, line: int, master: int, mask: Collection[int]) -> NoReturn:
    """Runs the bus process.

    holder: the abstract address of the holder. name: of the application, for the title. line: the reading end of the
    pipe, whose other end only the master has: at its end, this process is to end; a byte before says that that of
    another master follows. mask: the signal mask to restore.
    """
    try:
        companion.begin("bus", name, master, mask)
        poll = select.poll()
        poll.register(line, 0)
        try:
            made = [services.connection(address) for _ in range(2)]
        except ServiceError as error:
            log.logger.error("--publish-bus: %s: %s; fix this and restart the server", address.shown, error)
            poll.poll()
            os._exit(0)
        bus = _Bus(address, holder, *made)
        threads = [threading.Thread(target=bus.run, args=(target,), daemon=True) for target in (bus.send, bus.receive)]
        for thread in threads:
            thread.start()
        poll.poll()
        has_successor = bool(os.read(line, 1))
        bus.end()
        threads[0].join(GRACE)
        if not has_successor and bus.has_unsent():
            log.logger.error("--publish-bus: %s: the last publications could not be sent", address.shown)
        os._exit(0)
    except BaseException:
        log.logger.exception("the bus process ended with an exception; please report it")
    finally:
        os._exit(1)


class _Bus:
    """What both threads share."""

    def __init__(self, address: Address, holder: bytes, sender: Service, receiver: Service) -> None:
        self._holder_address, self._sender, self._receiver = holder, sender, receiver
        self._is_ending = threading.Event()
        # Another server asks what this one has.
        self._is_asked = threading.Event()
        # What the receiving thread has the other one send, by its subject: of one, the last is sent. And how it wakes
        # that one.
        self._requests: dict[str, bytes] = {}
        self._wakes, self._wakeup = os.pipe()
        for end in (self._wakes, self._wakeup):
            os.set_blocking(end, False)
        # The connection to the holder, which the sending thread makes and reads, and to which both write; and what the
        # holder has said at its start.
        self._lock = threading.Lock()
        self._holder: socket.socket | None = None
        self._greeting: dict[str, Any] | None = None
        # The number of the last document that was sent.
        self._sent = 0
        # The receiving thread's own: from which document on this server sends again, and up to which; of those that
        # have come back, the last one; and what the log says from time to time.
        self._resends: tuple[int, int] | None = None
        self._resent_at = float("-inf")
        self._came_back = 0
        self._told: object = None
        self._ignored, self._lost = _Seldom(), _Seldom()
        # What the sending thread is about to send, and whether the holder has more.
        self._batch: list[bytes] = []
        self._waits = False
        self._sends = _Reachability(address, "sent")
        self._hears = _Reachability(address, "received")

    def run(self, target: Callable[[], None]) -> None:
        """Runs a thread, with which the process ends."""
        try:
            target()
        except Exception:
            log.logger.exception("the bus process ended with an exception; please report it")
            os._exit(1)

    def end(self) -> None:
        """Has the sending thread send what it has got, and end."""
        self._is_ending.set()
        self._wake()

    def has_unsent(self) -> bool:
        """At the end: whether documents were not sent."""
        with self._lock:
            if self._holder is not None:
                self._waits = bool(select.select([self._holder], [], [], 0)[0])
        return any(message.startswith(b"D") for message in self._batch) or (bool(self._batch) and self._waits)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wakeup, b".")

    # The sending thread

    def send(self) -> None:
        """Sends what the holder gives, until the process is to end."""
        while not self._is_ending.is_set():
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
                    holder.settimeout(_HOLDER_TIMEOUT)
                    holder.connect(b"\0" + self._holder_address)
                    holder.sendall(_framed(b"B"))
                    self._send_all(holder)
            except OSError as error:
                if not self._is_ending.is_set():
                    log.logger.warning(
                        "--publish-bus: the process that holds connections does not answer: %s; trying again",
                        denial(error),
                    )
            finally:
                with self._lock:
                    self._holder = None
                if not self._is_ending.is_set():
                    self._batch = []
            self._is_ending.wait(_FIRST_PAUSE)

    def _send_all(self, holder: socket.socket) -> None:
        """Until the holder ends, or the process. Raises OSError."""
        outgoing = _Outgoing()
        said_at = float("-inf")
        while True:
            is_ending = self._is_ending.is_set()
            interval = _LEAST if self._is_asked.is_set() else _HEARTBEAT
            pause = max(0.0, said_at + interval - time.monotonic()) if outgoing.name else _HOLDER_TIMEOUT
            sources: list[Any] = [holder, self._wakes]
            ready = select.select(sources, [], [], _LAST if is_ending else pause)[0]
            if self._wakes in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakes, 4096)
            batch: list[bytes] = []
            is_over = is_ending and not ready
            if holder in ready:
                received = holder.recv(_BATCH)
                is_over = not received
                was_joined = bool(outgoing.name)
                batch += outgoing.take(received)
                if outgoing.name and not was_joined:
                    with self._lock:
                        self._holder, self._greeting = holder, outgoing.greeting
            elif not outgoing.name and not ready:
                raise TimeoutError(f"no reply within {_HOLDER_TIMEOUT:.0f} s")
            with self._lock:
                batch += self._requests.values()
                self._requests.clear()
            interval = _LEAST if self._is_asked.is_set() else _HEARTBEAT
            if outgoing.name and time.monotonic() >= said_at + interval:
                self._is_asked.clear()
                batch.append(outgoing.state())
                said_at = time.monotonic()
            if batch and not self._try(batch):
                self.has_unsent()
                return
            self._sent = outgoing.last
            if is_over:
                return

    def _try(self, batch: list[bytes]) -> bool:
        """Sends it, as soon as the service can be reached. False: the process is to end before."""
        pause = _FIRST_PAUSE
        self._batch = batch
        while True:
            try:
                self._sender.send(batch)
            except ServiceError as error:
                self._sender.close()
                self._sends.failed(str(error))
                if self._is_ending.wait(pause):
                    return False
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._batch = []
                self._sends.worked()
                return True

    # The receiving thread

    def receive(self) -> None:
        """Brings what other servers send, until the process ends."""
        pause = _FIRST_PAUSE
        order, greeting = Order({}, time.monotonic()), None
        heard_at = told_at = time.monotonic()
        has_asked = False
        while True:
            try:
                messages = self._receiver.receive(_TICK)
                now = time.monotonic()
                if now - heard_at > _DEAF and self._sends.works:
                    raise ServiceError("this server does not receive its own messages")
            except ServiceError as error:
                self._receiver.close()
                self._hears.failed(str(error))
                self._resends, has_asked = None, False
                self._tell(order)
                time.sleep(pause)
                pause, heard_at = min(2 * pause, _LONGEST_PAUSE), time.monotonic()
                continue
            with self._lock:
                found, holder = self._greeting, self._holder
            if found is None or holder is None:
                # Nothing is sent now.
                heard_at = now
                continue
            if found is not greeting:
                # Another holder, which knows what it has.
                order, greeting = Order(found["heard"], now), found
                self._resends, self._came_back = None, found["after"]
                has_asked = False
            if not has_asked:
                # It is subscribed now, so this comes back, too.
                self._request(f"?{found['name']}")
                has_asked = True
            lost = order.lost
            delivered = []
            for message in messages:
                is_own, is_delivered = self._handled(message, found["name"], order, now)
                if is_delivered:
                    delivered.append(_framed(b"D", message[1:]))
                if is_own:
                    heard_at, pause = now, _FIRST_PAUSE
                    if self._hears.worked():
                        order.resume(now)
            if not self._sends.works:
                order.resume(now)
            for name, number in order.due(now):
                self._request(f"A{name}", number)
            if count := self._lost.due(order.lost - lost, now):
                log.logger.error(
                    "--publish-bus: %s from other servers lost, because they could not be resent",
                    log.counted(count, "publication"),
                )
            if count := self._ignored.due(0, now):
                log.logger.warning("--publish-bus: %s from other programs ignored", log.counted(count, "more message"))
            _give(holder, delivered)
            if now >= told_at + _TICK or order.lost > lost:
                self._tell(order)
                told_at = now

    def _request(self, subject: str, *numbers: int) -> None:
        """Has the sending thread send this to other servers."""
        with self._lock:
            self._requests[subject] = " ".join([subject, *map(str, numbers)]).encode()
        self._wake()

    def _handled(self, message: bytes, own: str, order: Order, now: float) -> tuple[bool, bool]:
        """Whether it is of this server, and whether it is to be delivered."""
        form = _FORM.match(message) if len(message) <= _MAX_MESSAGE else None
        kind = form[1] if form else b""
        name, numbers = (form[2].decode(), [int(word) for word in form[3].split()]) if form else ("", [])
        if len(numbers) != _NUMBERS.get(kind):
            if self._ignored.due(1, now):
                log.logger.warning(
                    "--publish-bus: a message from another program was ignored: %r; to separate programs, append "
                    "?channel=NAME to the URL",
                    message[:100],
                )
        elif kind == b"A":
            if name == own:
                self._send_again(numbers[0], now)
        elif name == own:
            if kind == b"D":
                self._came_back = max(self._came_back, numbers[0])
                if self._resends and numbers[0] >= self._resends[1]:
                    self._resends = None
            return True, False
        elif kind == b"?":
            self._is_asked.set()
            self._wake()
        elif kind == b"D":
            return False, order.document(name, numbers[0], now)
        else:
            order.state(name, numbers[0], numbers[1], now)
        return False, False

    def _send_again(self, number: int, now: float) -> None:
        """Another server asks for the documents from this one on. Those that are being sent again come anyway, also for
        others, and whoever has missed them asks again."""
        age = now - self._resent_at
        is_coming = self._resends is not None and number >= self._resends[0] and age < _LONGEST_RESENDING
        if not is_coming and age >= _LEAST:
            self._resends, self._resent_at = (number, max(number, self._came_back)), now
            with self._lock:
                holder = self._holder
            if holder is not None:
                _give(holder, [_framed(b"B", str(number - 1).encode())])

    def _tell(self, order: Order) -> None:
        """Tells the holder the figures."""
        figures: dict[str, Any] = {
            "connected": self._sends.works and self._hears.works,
            "servers": order.servers(time.monotonic()),
            "lost": order.lost,
            "sent": self._sent,
            "heard": order.delivered,
        }
        with self._lock:
            holder = self._holder
        if holder is not None and (holder, figures) != self._told:
            _give(holder, [_framed(b"S", json.dumps(figures).encode())])
            # It adds them up.
            order.lost = figures["lost"] = 0
            self._told = holder, figures


def _give(holder: socket.socket, frames: Iterable[bytes]) -> None:
    """Gives the holder messages. If it has ended, the next one says what it lacks."""
    if joined := b"".join(frames):
        try:
            holder.sendall(joined)
        except OSError:
            # It may have got a part. The sending thread notices the end, and connects again.
            with contextlib.suppress(OSError):
                holder.shutdown(socket.SHUT_RDWR)


class _Outgoing:
    """What the holder gives, as messages of the bus."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        # What it has said first; and the name of this server, empty before that.
        self.greeting: dict[str, Any] = {}
        self.name = ""
        # The numbers of the last document that was taken, and of the first that the holder has.
        self.last, self._first = 0, 1

    def state(self) -> bytes:
        """What this server has."""
        return f"H{self.name} {self.last} {self._first}".encode()

    def take(self, received: bytes) -> list[bytes]:
        """The messages that are complete with these bytes."""
        self._buffer += received
        found, at = [], 0
        while len(self._buffer) >= at + _HEAD:
            end = at + 4 + int.from_bytes(self._buffer[at : at + 4], "little")
            if len(self._buffer) < end:
                break
            kind, content = self._buffer[at + 4 : at + _HEAD], bytes(self._buffer[at + _HEAD : end])
            at = end
            if kind == b"B":
                told = json.loads(content)
                self._first = told["first"]
                if not self.name:
                    self.greeting, self.name, self.last = told, told["name"], told["after"]
                # Whoever has asked for documents that are not kept any more goes on; and others deliver only documents
                # of servers that have said what they have.
                found.append(self.state())
            elif kind == b"D":
                self._note(int(content[: content.index(b"\n")].split()[1]))
                found.append(b"D" + content)
        del self._buffer[:at]
        return found

    def _note(self, number: int) -> None:
        if number > self.last + 1:
            log.logger.error(
                "--publish-bus: %s lost: over the age or memory limit before they could be sent",
                log.counted(number - self.last - 1, "publication"),
            )
        self.last = max(self.last, number)


class _Reachability:
    """Whether messages can be sent, or received, and the lines of the log about that."""

    def __init__(self, address: Address, done: str) -> None:
        self._address, self._done = address, done
        self.works = False
        self._failed_at: float | None = None

    def failed(self, why: str) -> None:
        """They cannot."""
        self.works = False
        if self._failed_at is None:
            self._failed_at = time.monotonic()
            log.logger.error(
                "--publish-bus: %s: publications cannot be %s: %s; trying again", self._address.shown, self._done, why
            )

    def worked(self) -> bool:
        """They can. Returns whether they could not before."""
        if self.works:
            return False
        self.works = True
        if self._failed_at is None:
            log.logger.info("--publish-bus: %s: publications are %s", self._address.shown, self._done)
        else:
            seconds = time.monotonic() - self._failed_at
            self._failed_at = None
            log.logger.warning(
                "--publish-bus: %s: publications can be %s again, after %.1f s",
                self._address.shown,
                self._done,
                seconds,
            )
        return True


class _Seldom:
    """What may happen often, and is in the log from time to time."""

    def __init__(self) -> None:
        self._count = 0
        self._at = float("-inf")

    def due(self, more: int, now: float) -> int:
        """So many more. Returns how many are to be in the log now."""
        self._count += more
        if not self._count or now < self._at + _LOG_PAUSE:
            return 0
        count, self._count, self._at = self._count, 0, now
        return count


def _framed(kind: bytes, content: bytes = b"") -> bytes:
    """A message to the holder (crates/holder/src/message.rs)."""
    return struct.pack("<I", len(content) + 1) + kind + content
