"""What happens inside the application during one request, layer by layer: which middleware returned what, who closed
it, who read a file wrapper, which files were opened.

A profile function of the thread (`sys.setprofile`) sees every call that takes `environ` and `start_response`, and an
audit hook every file that is opened. Both cost time, so nothing is timed in such a request.

Thread: the one of the server that runs the request; the result is read when the request is over.
"""

from __future__ import annotations

import inspect
import io
import itertools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinMethodType, CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from tailrace_tools.doctor import places

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_MARK: Final = "tailrace.delivery"
# Types that have no blocks, or whose blocks the server takes without iterating.
PASSED_ON: Final = (bytes, bytearray, memoryview, str, dict, type(None), list, tuple)


@dataclass(frozen=True)
class Layer:
    """A callable that took the request: an application or a middleware. place: `file:line`. code: of a generator
    function, which is noted at its first step; what it returned is not known then."""

    name: str
    place: str
    returned: object
    code: CodeType | None = None


@dataclass(frozen=True)
class Failure:
    """An exception of the application. when: `call`, `blocks` or `close`."""

    when: str
    type: str
    message: str
    place: str


class SeenWrapper:
    """`wsgi.file_wrapper` of such a request: a file wrapper that notes who made it, who iterates it and who closes it.

    A class for each request inherits from it, since middleware asks `isinstance(body, environ["wsgi.file_wrapper"])`.
    """

    trace: Trace

    def __init__(self, filelike: Any, blksize: int = 8192) -> None:
        self._filelike = filelike
        self.is_read = False
        self.block_size = blksize
        self.made_by = places.caller(sys._getframe(1))
        self.read_by: tuple[str, str] = ("", "")
        self.is_closed = False
        self.trace.wrappers.append(self)

    @property
    def filelike(self) -> Any:
        """The file; middleware that asks for it reads it itself."""
        self.is_read = True
        return self._filelike

    def __iter__(self) -> Iterator[Any]:
        self.is_read = True
        self.read_by = places.caller(sys._getframe(1))
        return self._blocks()

    def __next__(self) -> Any:
        self.is_read = True
        if not self.read_by[0]:
            self.read_by = places.caller(sys._getframe(1))
        block = self._filelike.read(max(self.block_size, 1))
        if not block:
            raise StopIteration
        return block

    def _blocks(self) -> Iterator[Any]:
        while block := self._filelike.read(max(self.block_size, 1)):
            yield block

    def close(self) -> None:
        """Closes the file."""
        self.is_closed = True
        close = getattr(self._filelike, "close", None)
        if close is not None:
            close()


class Trace:
    """The application for one request, traced. `ended` is set when the server is done with it.

    layers: in the order in which they returned, so the outermost is the last; a generator function at its first step.
    returned: what the outermost one returned; made_by: its name and place. status, fields: what `start_response` was
    given last. blocks: how many were iterated. written: the lengths of blocks given to `write()`. files: regular files
    that were opened for reading.
    """

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self.layers: list[Layer] = []
        self.wrappers: list[SeenWrapper] = []
        self.returned: object = None
        self.made_by = ("", "")
        self.status: str | None = None
        self.fields: list[tuple[str, str]] = []
        self.written: list[int] = []
        self.files: list[str] = []
        self.failures: list[Failure] = []
        self.delivery: Callable[[], dict[str, Any]] | None = None
        self.ended = threading.Event()
        self.blocks = 0
        self._passed: StartResponse | None = None
        self._is_iterated = False
        self._steps: Counter[CodeType] = Counter()
        self._step_names: dict[CodeType, str] = {}
        self._closed: set[int] = set()
        self._calls: dict[int, FrameType] = {}
        # The functions that are `close()` of something: each with that, and with what it is a method of.
        self._closers: dict[CodeType, list[tuple[object, object]]] = {}
        self._generators: set[CodeType] = set()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[Any]:
        """Calls the application."""
        self.delivery = environ[_MARK]
        environ["wsgi.file_wrapper"] = type("FileWrapper", (SeenWrapper,), {"trace": self})
        passed = self._passed = self._start_response(start_response)
        returned = self.run("call", lambda: self._application(environ, passed))
        self.returned = returned
        self.made_by = places.of_object(returned)
        if isinstance(returned, PASSED_ON):
            self.ended.set()
            passed_on: Iterable[Any] = returned  # type: ignore[assignment]
            return passed_on
        return _Iterated(returned, self)

    def run(self, when: str, action: Callable[[], Any]) -> Any:
        """Runs code of the application under the profile function."""
        before = sys.getprofile()
        self._is_iterated = when == "blocks"
        _watching[threading.get_ident()] = self
        sys.setprofile(self._profile)
        try:
            return action()
        except StopIteration:
            raise
        except BaseException as error:
            sys.setprofile(before)
            self.failures.append(Failure(when, places.of_type(type(error)), str(error), places.of_error(error)))
            if when == "call":
                self.ended.set()
            if isinstance(error, Exception):
                raise
            # SystemExit and its like would end the server.
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        finally:
            sys.setprofile(before)
            _watching.pop(threading.get_ident(), None)

    @property
    def outermost_first(self) -> list[Layer]:
        """The layers in the order in which the request reached them."""
        ordered = [layer for layer in reversed(self.layers) if layer.code is None]
        for generator in (layer for layer in self.layers if layer.code is not None):
            makers = (
                place for place, layer in enumerate(ordered) if getattr(layer.returned, "gi_code", "") is generator.code
            )
            ordered.insert(max(makers, default=-1) + 1, generator)
        return ordered

    @property
    def unclosed(self) -> list[tuple[Layer, str]]:
        """Iterables that have a `close()` which nobody called, each with the layer that returned it and its name."""
        found: dict[int, tuple[Layer, str]] = {}
        for layer in self.layers:
            made = layer.returned
            if id(made) not in found and self._needs_close(made):
                name = "a file wrapper" if isinstance(made, SeenWrapper) else places.of_object(made)[0]
                found[id(made)] = (layer, name)
        return list(found.values())

    def _needs_close(self, made: object) -> bool:
        if isinstance(made, SeenWrapper):
            return not made.is_closed
        if inspect.isgenerator(made):
            return inspect.getgeneratorstate(made) == inspect.GEN_SUSPENDED
        if isinstance(made, io.IOBase):
            return not made.closed
        close = getattr(made, "close", None)
        # Calls of anything else are not seen, and nothing is said of them.
        is_seen = isinstance(getattr(close, "__func__", close), (FunctionType, BuiltinMethodType))
        return (
            is_seen and hasattr(made, "__iter__") and not isinstance(made, PASSED_ON) and id(made) not in self._closed
        )

    def _start_response(self, start_response: StartResponse) -> StartResponse:
        def passed(status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Callable[[bytes], object]:
            self.status, self.fields = status, list(headers)
            given = (status, headers) if exc_info is None else (status, headers, exc_info)
            write = start_response(*given)

            def written(block: bytes) -> object:
                self.written.append(len(block))
                return write(block)

            return written

        return passed

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._called(frame)
        elif event == "return":
            if self._calls.pop(id(frame), None) is not None:
                made = argument
                if frame.f_code.co_name == "__init__":
                    made = frame.f_locals[frame.f_code.co_varnames[0]]
                if made is not None:
                    self.layers.append(Layer(places.of_function(frame), places.of_code(frame.f_code), made))
                    close = getattr(made, "close", None)
                    function = getattr(close, "__func__", close)
                    if isinstance(function, FunctionType):
                        owner = getattr(close, "__self__", None)
                        self._closers.setdefault(function.__code__, []).append((made, owner))
        elif event == "c_call" and getattr(argument, "__name__", "") == "close":
            self._closed.add(id(getattr(argument, "__self__", None)))

    @property
    def producer(self) -> tuple[str, str]:
        """Name and place of the innermost generator of the project that was asked once for each block; of what was
        returned, if there is none, or if it is one itself."""
        each = (self.blocks, self.blocks + 1)
        own = [code for code, steps in self._steps.items() if steps in each and not places.is_library(code)]
        if not own or getattr(self.returned, "gi_code", None) in own:
            return self.made_by
        return self._step_names[own[-1]], places.of_code(own[-1])

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        if self._is_iterated and code.co_flags & inspect.CO_GENERATOR and not places.is_own(code):
            self._steps[code] += 1
            if code not in self._step_names:
                self._step_names[code] = places.of_function(frame)
        count = code.co_argcount
        if not count or places.is_own(code):
            return
        for made, owner in self._closers.get(code, ()):
            if owner is None or frame.f_locals.get(code.co_varnames[0]) is owner:
                self._closed.add(id(made))
        is_generator = bool(code.co_flags & inspect.CO_GENERATOR)
        # A generator function is called once and continued at each step.
        if count < 2 or (is_generator and code in self._generators):
            return
        names = code.co_varnames[: min(count, 3)]
        given = frame.f_locals
        for name, following in itertools.pairwise(names):
            environ = given.get(name)
            starts = given.get(following)
            # Middleware may replace either, and other functions take `environ` and a callable.
            is_start = starts is self._passed or ("start" in following and callable(starts))
            if is_start and isinstance(environ, dict) and environ.get(_MARK) is self.delivery:
                if is_generator:
                    self._generators.add(code)
                    self.layers.append(Layer(places.of_function(frame), places.of_code(code), None, code))
                else:
                    self._calls[id(frame)] = frame
                return


class _Iterated:
    """An iterable around the application's: each step and `close()` run under the profile function."""

    def __init__(self, iterable: Any, trace: Trace) -> None:
        self._iterable = iterable
        self._trace = trace

    def __iter__(self) -> Iterator[Any]:
        blocks = self._trace.run("blocks", lambda: iter(self._iterable))
        while True:
            try:
                block = self._trace.run("blocks", lambda: next(blocks))
            except StopIteration:
                return
            self._trace.blocks += 1
            yield block

    def close(self) -> None:
        """Closes the application's iterable."""
        try:
            close = getattr(self._iterable, "close", None)
            if close is not None:
                self._trace.run("close", close)
        finally:
            self._trace.ended.set()


# The trace of the request that a thread runs, for the audit hook, which is never removed.
_watching: Final[dict[int, Trace]] = {}
_hooked: Final[list[bool]] = []


def watch_files() -> None:
    """From now on the files that a traced request opens are noted."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _watching or (trace := _watching.get(threading.get_ident())) is None:
        return
    name, _, flags = arguments
    if isinstance(name, (str, bytes, os.PathLike)) and flags & os.O_ACCMODE == os.O_RDONLY:
        path = os.path.abspath(os.fsdecode(name))
        if path not in trace.files and os.path.isfile(path):
            trace.files.append(path)
