"""Examining: asks the application several times, each time observed in another way.

1. traced (`layers.py`): who returned what, who closed it, which files were opened; nothing is timed.
2. timed (`blocks.py`): the blocks and the times between them.
3. undisturbed, several times: the server's record. The quickest counts.
4. the same bytes as one list, as often: the floor.

After an exception there is only the first, of a response that does not end the first two.

Thread: the caller's; the application runs on those of the server.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tailrace.commands import Loaded
from tailrace.errors import ConfigError
from tailrace_tools.doctor import asking, layers, places
from tailrace_tools.doctor.asking import Client, Request, Response
from tailrace_tools.doctor.blocks import Blocks, Timed, of_known
from tailrace_tools.doctor.layers import SeenWrapper, Trace
from tailrace_tools.doctor.measured import (
    BYTES,
    FILE,
    GENERATOR,
    ITERABLE,
    LIST,
    NOTHING,
    TEXT,
    TUPLE,
    WRAPPER,
    Compressed,
    Compression,
    Delivery,
    Measured,
    Named,
    SpoiltWrapper,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# Requests are not repeated when the undisturbed ones have taken so long in all (seconds).
_ENOUGH: Final = 5.0
# Of a longer body no more than this is compressed (bytes).
_MAX_COMPRESSED: Final = 8 << 20
# How long the application may take for the end of a request whose client has its response, or has left (seconds).
_LAST_WAIT: Final = 30.0
_WAIT_AFTER_CUT: Final = 1.0
_OF_THE_BODY: Final = ("content-length", "x-sendfile", "x-accel-redirect")


class _Switch:
    """The application of the server: for each request the one that is put in."""

    def __init__(self, application: WSGIApplication) -> None:
        self.application = application

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self.application(environ, start_response)


class _Undisturbed:
    """The application as it is; only the time of its call is taken, and its delivery record kept."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self.record: Callable[[], dict[str, Any]] | None = None
        self.called = 0.0

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        self.record = environ["tailrace.delivery"]
        began = time.perf_counter()
        try:
            return self._application(environ, start_response)
        finally:
            self.called = (time.perf_counter() - began) * 1e3


def examine(
    loaded: Loaded,
    request: Request,
    name: str,
    *,
    times: int = 3,
    seconds: float = 30.0,
) -> Measured:
    """Measures the response to a request. Raises ConfigError when there is none.

    name: of the application. times: number of undisturbed requests. seconds: time limit of one response, after which
    the client disconnects.
    """
    layers.watch_files()
    switch = _Switch(loaded.application)
    with (
        _quiet(),
        loaded.serving(switch) as url,
        asking.client(_address(url), seconds) as client,
    ):
        return _Examination(loaded.application, switch, client, request, times, seconds).measured(name)


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


class _Examination:
    def __init__(
        self,
        application: WSGIApplication,
        switch: _Switch,
        client: Client,
        request: Request,
        times: int,
        seconds: float,
    ) -> None:
        self._application = application
        self._switch = switch
        self._client = client
        self._request = request
        self._times = times
        self._wait = seconds

    def measured(self, name: str) -> Measured:
        trace = Trace(self._application)
        response = self._ask(trace)
        if trace.delivery is None:
            return Measured(self._request, response, NOTHING, Named(""), None, is_asked=False, application=name)
        trace.ended.wait(_last_wait(response))
        made = trace.returned
        shape = _shape(trace)
        known = of_known(made) if isinstance(made, (list, tuple)) else None
        delivery = _recorded(trace.delivery, 0.0, response)
        floor: Delivery | None = None
        as_file: Delivery | None = None
        file: str | None = None
        is_well = all(failure.when == "close" for failure in trace.failures)
        is_well = is_well and trace.status is not None and shape not in (NOTHING, TEXT)
        if is_well and shape in (GENERATOR, ITERABLE):
            known = self._timed()
        if is_well and not response.is_cut:
            delivery, response = self._undisturbed(self._application)
            if response.body is not None:
                floor, _ = self._undisturbed(_as_list(trace, response.body))
                file = _file(trace.files, response.body)
                if file is not None or trace.wrappers:
                    as_file = self._as_file(trace, response.body)
        return Measured(
            request=self._request,
            response=response,
            shape=shape,
            returned=Named(*trace.made_by),
            delivery=delivery,
            producer=Named(*trace.producer),
            floor=floor,
            as_file=as_file,
            layers=_layers(trace),
            known=known,
            given=_given(trace, known),
            declared=_declared(trace.fields),
            written=tuple(trace.written),
            file=file,
            spoilt=_spoilt(trace),
            unclosed=tuple((Named(layer.name, layer.place), name) for layer, name in trace.unclosed),
            failures=tuple(trace.failures),
            compressed=_compressed(response),
            has_responded=trace.status is not None,
            application=name,
        )

    def _ask(self, application: WSGIApplication) -> Response:
        self._switch.application = application
        return self._client.ask(self._request)

    def _timed(self) -> Blocks:
        blocks = Blocks()

        def timed(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            returned = self._application(environ, start_response)
            return returned if isinstance(returned, layers.PASSED_ON) else Timed(returned, blocks, lambda: None)

        self._ask(timed)
        return blocks

    def _undisturbed(self, application: WSGIApplication) -> tuple[Delivery, Response]:
        found: list[tuple[Delivery, Response]] = []
        end = time.monotonic() + _ENOUGH
        while len(found) < self._times and (not found or time.monotonic() < end):
            one = _Undisturbed(application)
            response = self._ask(one)
            if one.record is None:
                raise ConfigError(
                    "the application answered the first request, but the server itself answered a repetition, with "
                    f"{response.status}; choose a URL that does not change the server's behavior"
                )
            found.append((_recorded(one.record, one.called, response), response))
        best = min(range(len(found)), key=lambda index: found[index][0].application)
        delivery, response = found[best]
        return replace(delivery, runs=len(found)), response

    def _as_file(self, trace: Trace, body: bytes) -> Delivery:
        """Delivers the response by a file wrapper."""
        status, fields = _head(trace)
        with tempfile.NamedTemporaryFile(prefix="tailrace-doctor-") as stored:
            stored.write(body)
            stored.flush()

            def filed(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
                start_response(status, fields)
                wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](open(stored.name, "rb"))  # noqa: SIM115
                return wrapped

            return self._undisturbed(filed)[0]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The findings say what the log would."""
    loggers = (logging.getLogger("tailrace"), logging.getLogger("tailrace.error"))
    before = [(logger.handlers[:], logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers[:], logger.propagate = [logging.NullHandler()], False
    try:
        yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate


def _last_wait(response: Response) -> float:
    return _WAIT_AFTER_CUT if response.is_cut else _LAST_WAIT


def _recorded(record: Callable[[], dict[str, Any]], called: float, response: Response) -> Delivery:
    """The record, once the server has ended it: the client may have all bytes a moment earlier."""
    end = time.monotonic() + _last_wait(response)
    while (told := record()).get("ending") == "open" and time.monotonic() < end:
        time.sleep(0.001)
    return Delivery(
        application=told["app_ms"],
        called=min(called, told["app_ms"]),
        first_block=min(told["first_block_ms"] or 0.0, told["app_ms"]),
        until_last=response.ms,
        waited=told["waited_ms"],
        blocks=told["blocks"],
        bytes=told["bytes"],
        writes=told["writes"],
        path=told["delivery"],
        ending=told["ending"],
        compression=_compression(told),
    )


def _compression(told: dict[str, Any]) -> Compression | None:
    if told["coding"] is None:
        return None
    return Compression(told["coding"], told["plain_bytes"], told["bytes"], told["compress_ms"])


def _as_list(trace: Trace, body: bytes) -> WSGIApplication:
    """An application that returns the response as one list."""
    status, fields = _head(trace)

    def listed(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(status, fields)
        return [body]

    return listed


def _head(trace: Trace) -> tuple[str, list[tuple[str, str]]]:
    """Status and fields of the response, without those that say what its body is."""
    fields = [(name, value) for name, value in trace.fields if name.lower() not in _OF_THE_BODY]
    return trace.status or "200 OK", fields


def _shape(trace: Trace) -> str:
    made = trace.returned
    kinds: tuple[tuple[type[Any] | tuple[type[Any], ...], str], ...] = (
        (list, LIST),
        (tuple, TUPLE),
        ((bytes, bytearray, memoryview), BYTES),
        (str, TEXT),
        ((dict, type(None)), NOTHING),
        (SeenWrapper, WRAPPER),
        (io.IOBase, FILE),
    )
    for kind, name in kinds:
        if isinstance(made, kind):
            return name
    return GENERATOR if hasattr(made, "gi_code") else ITERABLE


def _layers(trace: Trace) -> tuple[Named, ...]:
    found: list[Named] = []
    for layer in trace.outermost_first:
        if (named := Named(layer.name, layer.place)) not in found:
            found.append(named)
    return tuple(found)


def _declared(fields: list[tuple[str, str]]) -> int | None:
    value = next((value.strip() for name, value in fields if name.lower() == "content-length"), "")
    return int(value) if value.isascii() and value.isdigit() else None


def _given(trace: Trace, known: Blocks | None) -> int | None:
    """The bytes that the application gave."""
    if known is not None:
        return known.bytes + sum(trace.written)
    if isinstance(trace.returned, (bytes, bytearray, memoryview)):
        return len(trace.returned) + sum(trace.written)
    return None


def _file(files: list[str], body: bytes | None) -> str | None:
    """The file among those that were opened that has the bytes of the body."""
    for path in files if body else ():
        with contextlib.suppress(OSError):
            if os.path.getsize(path) == len(body or b""):
                with open(path, "rb") as file:
                    if file.read() == body:
                        return path
    return None


def _spoilt(trace: Trace) -> SpoiltWrapper | None:
    for wrapper in trace.wrappers:
        if wrapper is not trace.returned and wrapper.is_read:
            by = Named(*wrapper.read_by)
            if not by.name:
                by = Named(*_next_layer(trace, wrapper))
            return SpoiltWrapper(Named(*wrapper.made_by), by)
    return None


def _next_layer(trace: Trace, wrapper: SeenWrapper) -> tuple[str, str]:
    """The layer around the last one that returned the wrapper; else the object that was returned instead."""
    places_of_wrapper = [index for index, layer in enumerate(trace.layers) if layer.returned is wrapper]
    following = trace.layers[places_of_wrapper[-1] + 1 :] if places_of_wrapper else []
    return (following[0].name, following[0].place) if following else places.of_object(trace.returned)


def _compressed(response: Response) -> Compressed | None:
    """What gzip makes of the body; None: it has no body, or is compressed already."""
    if not response.body or response.header("Content-Encoding"):
        return None
    part = response.body[:_MAX_COMPRESSED]
    began = time.perf_counter()
    into = len(gzip.compress(part, 6))
    return Compressed(len(part), into, (time.perf_counter() - began) * 1e3)
