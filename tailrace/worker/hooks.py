"""Hooks: functions of the module that `--hooks` names, called at certain times in the master and in its workers.

    def on_start(): ...              # master: sockets are bound, no worker is forked yet
    def post_fork(worker): ...       # worker: just forked, the application not yet loaded (unless --preload)
    def worker_start(worker): ...    # worker: application loaded, no request yet: warm caches, open connections
    def pre_request(environ): ...    # worker: in the request's thread or greenlet, just before the application
    def post_request(record): ...    # worker: a response has ended, complete or not; see `tailrace.on_delivery`
    def worker_stop(worker): ...     # worker: its last request has ended: close connections, send what is buffered
    def worker_exit(worker): ...     # master: the process has ended, for whatever reason
    def on_exit(): ...               # master: the last thing before it ends

Each is optional; `worker` is a `WorkerInfo`. The master imports the module once, so the module should not import the
application. `--debug` without a master calls all of them in the one process, except `post_fork` and `worker_exit`.

An exception in a hook is never swallowed: in `on_start` it stops the server, in `post_fork` and `worker_start` the
worker fails as if the application had not loaded, in the others it is logged with its traceback; in `pre_request` and
`post_request` only the first one. `worker_stop` has a time limit.

Thread: the main thread of the master or of the worker, except `pre_request` and `post_request`, which the core calls on
the request's thread and on the thread of `tailrace.on_delivery`.
"""

from __future__ import annotations

import contextlib
import difflib
import faulthandler
import inspect
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace._tailrace import RequestTimeout
from tailrace.cli import callables, load, tracebacks
from tailrace.errors import ConfigError, HookError
from tailrace.logs import deliveries, log
from tailrace.system import forks, signals
from tailrace.system.exit import leave
from tailrace.worker.debug import Stopped

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# What each is called with.
_ARGUMENT: Final = {
    "on_start": "",
    "post_fork": "worker",
    "worker_start": "worker",
    "pre_request": "environ",
    "post_request": "record",
    "worker_stop": "worker",
    "worker_exit": "worker",
    "on_exit": "",
}
# The least time that `worker_stop` has (seconds), and how much later the process ends if no handler of a signal runs.
# Together they are shorter than the time after which the master kills the worker (`plan.LEAVING`).
MIN_TO_STOP: Final = 3.0
_BY_FORCE_AFTER: Final = 1.0
# A function whose name begins so is most likely meant as a hook.
_PREFIXES: Final = ("on_", "pre_", "post_", "when_", "worker_", "child_")


@dataclass(frozen=True)
class WorkerInfo:
    """What a hook is told about a worker.

    number: from 1; a successor has the number of the worker that it replaces. generation: 1 more than the number of
    reloads so far. exit_status, exit_signal: only in `worker_exit`, and only one of them; both are None when the status
    of the process was not seen.
    """

    number: int
    pid: int
    generation: int
    exit_status: int | None = None
    exit_signal: int | None = None

    @property
    def ending(self) -> str:
        """How it ended, in words: `status 0`, `SIGKILL`."""
        if self.exit_signal is not None:
            try:
                return signal.Signals(self.exit_signal).name
            except ValueError:
                return f"signal {self.exit_signal}"
        return "still running" if self.exit_status is None else f"status {self.exit_status}"


class Hooks(NamedTuple):
    """The functions that the module has, by name; none without `--hooks`."""

    module: str = ""
    functions: Mapping[str, Callable[..., object]] = MappingProxyType({})

    @property
    def prepares_workers(self) -> bool:
        """Whether one of its functions prepares each worker for requests."""
        return "post_fork" in self.functions or "worker_start" in self.functions

    def on_start(self) -> None:
        """In the master, before the first worker. Raises HookError."""
        self._call("on_start")

    def post_fork(self, worker: WorkerInfo) -> None:
        """In the worker, before it loads the application. Raises HookError."""
        self._call("post_fork", worker)

    def worker_start(self, worker: WorkerInfo) -> None:
        """In the worker, before it tells the master that it is ready. Raises HookError."""
        self._call("worker_start", worker)

    def around(self, application: WSGIApplication, *, gevent: bool) -> WSGIApplication:
        """The application with `pre_request` before each call. What that raises is logged once."""
        hook = self.functions.get("pre_request")
        if hook is None:
            return application
        return _WithHook(application, hook, f"{self.module}.pre_request", _interruptions(gevent=gevent))

    def follow(self) -> None:
        """In the process that serves: has `post_request` called with the record of each response."""
        hook = self.functions.get("post_request")
        if hook is not None:
            deliveries.follow(hook, f"the hook {self.module}.post_request")

    def worker_stop(self, worker: WorkerInfo, seconds: float) -> None:
        """In the worker, when its last request has ended. What it raises is logged.

        seconds: what is left of the graceful time. If the hook takes longer, and longer than MIN_TO_STOP, the process
        ends.
        """
        if "worker_stop" in self.functions:
            with self._limited(max(seconds, MIN_TO_STOP)):
                self._call_and_log("worker_stop", worker)

    @contextlib.contextmanager
    def _limited(self, seconds: float) -> Iterator[None]:
        """Ends the process if the code inside the context takes longer than this.

        The application may use SIGALRM, too: its handler is called when its own alarm has gone off, before the limit.
        """
        greenlet, gevent = sys.modules.get("greenlet"), sys.modules.get("gevent")
        own = greenlet.getcurrent() if greenlet is not None else None

        def end(frame: FrameType | None) -> None:
            log.logger.error(
                "the hook %s.worker_stop has not returned after %.1f s, so the process exits without waiting; it is "
                "at\n%s",
                self.module,
                seconds,
                _stack(frame),
            )
            leave(0)

        others = signal.getsignal(signal.SIGALRM)
        deadline = time.monotonic() + seconds

        def over(number: int, frame: FrameType | None) -> None:
            left = deadline - time.monotonic()
            if left > 0:
                # An alarm of the hook, which has replaced ours: both use the only timer. A periodic one continues.
                if not 0 < signal.getitimer(signal.ITIMER_REAL)[0] < left:
                    signal.setitimer(signal.ITIMER_REAL, left)
                if callable(others):
                    others(number, frame)
                return
            waiting = own.gr_frame if own is not None else None
            if waiting is not None and gevent is not None:
                # The hook waits for the hub, and handlers run there, where nothing may wait.
                gevent.spawn(end, waiting)
            else:
                end(frame)

        # For a hook that never returns to the interpreter, and so lets no handler run.
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
            stream = sys.__stderr__ if sys.__stderr__ is not None else 2
            faulthandler.dump_traceback_later(seconds + _BY_FORCE_AFTER, exit=True, file=stream)
        try:
            with signals.handled({signal.SIGALRM: over}):
                signal.setitimer(signal.ITIMER_REAL, seconds)
                try:
                    yield
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def worker_exit(self, worker: WorkerInfo) -> None:
        """In the master, when the worker has been reaped. What it raises is logged."""
        self._call_and_log("worker_exit", worker)

    def on_exit(self) -> None:
        """In the master, when all workers have ended. What it raises is logged."""
        self._call_and_log("on_exit")

    def _call(self, name: str, *arguments: WorkerInfo) -> None:
        function = self.functions.get(name)
        if function is None:
            return
        try:
            with forks.application():
                function(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Without the first frame, which is ours.
            trace = error.__traceback__.tb_next if error.__traceback__ else None
            raise HookError(
                f"the hook {self.module}.{name} failed: {tracebacks.summary(error)}", tracebacks.formatted(error, trace)
            ) from None

    def _call_and_log(self, name: str, *arguments: WorkerInfo) -> None:
        try:
            self._call(name, *arguments)
        except HookError as error:
            log.logger.error("%s\n%s", error, error.user_traceback.rstrip())


def read(name: str | None) -> Hooks:
    """The hooks of the module (or file) `name`; none for None.

    Warns of functions whose names look like hooks and are none. Raises ConfigError for a hook that cannot be called as
    it will be, LoadError when the module cannot be imported.
    """
    if name is None:
        return Hooks()
    module = load.module(name)
    for other in _suspicious(module):
        log.logger.warning(
            "--hooks %s: the function %s is not a hook, so it is not called%s", name, other, _nearest(other, module)
        )
    functions = {hook: getattr(module, hook) for hook in _ARGUMENT if hasattr(module, hook)}
    for hook, function in functions.items():
        _check(name, hook, function)
    if not functions:
        log.logger.warning("--hooks %s: the module defines no hook; the hooks are %s", name, ", ".join(_ARGUMENT))
    return Hooks(name, functions)


class _WithHook:
    """An application with `pre_request` before each call. It has the attributes of the application, so the log names
    that."""

    def __init__(
        self,
        application: WSGIApplication,
        hook: Callable[..., object],
        name: str,
        interruptions: tuple[type[BaseException], ...],
    ) -> None:
        self._application, self._hook, self._name, self._interruptions = application, hook, name, interruptions
        self._has_failed = False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            self._hook(environ)
        except self._interruptions:
            raise
        except BaseException:
            if not self._has_failed:
                self._has_failed = True
                log.logger.exception("the hook %s raised an exception; further exceptions are not logged", self._name)
        return self._application(environ, start_response)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._application, name)


def _stack(frame: FrameType | None) -> str:
    """Where a hook is, without the frames that called it."""
    inner = []
    while frame is not None and frame.f_code is not Hooks._call.__code__:
        inner.append((frame, frame.f_lineno))
        frame = frame.f_back
    return "".join(traceback.StackSummary.extract(reversed(inner)).format()).rstrip()


def _interruptions(*, gevent: bool) -> tuple[type[BaseException], ...]:
    """What is raised in a request from outside, and so is not the failure of a hook."""
    if not gevent:
        return RequestTimeout, KeyboardInterrupt, Stopped
    from greenlet import GreenletExit

    return RequestTimeout, KeyboardInterrupt, GreenletExit


def _check(module: str, name: str, function: Any) -> None:
    """Raises ConfigError unless the hook can be called."""
    argument = _ARGUMENT[name]
    remedy = f"write `def {name}({argument}):`"
    if not callable(function):
        raise ConfigError(f"--hooks {module}: {name} is {callables.kind_of(function)}, not a function; {remedy}")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"--hooks {module}: {name} is async, and nothing would await it; {remedy}")
    if inspect.isgeneratorfunction(function):
        raise ConfigError(f"--hooks {module}: {name} is a generator, and nothing would run it; {remedy}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a function in C without a signature
    try:
        signature.bind(*(None,) * bool(argument))
    except TypeError:
        given = f"one argument, the {argument}" if argument else "no arguments"
        raise ConfigError(
            f"--hooks {module}: {name} is called with {given}, but is defined as {name}{signature}; {remedy}"
        ) from None


def _suspicious(module: ModuleType) -> list[str]:
    """Functions that the module itself defines and that look like a misspelt hook."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and name not in _ARGUMENT
        and not name.startswith("_")
        and (name.startswith(_PREFIXES) or difflib.get_close_matches(name, _ARGUMENT, n=1, cutoff=0.8))
    ]


def _nearest(name: str, module: ModuleType) -> str:
    """The end of a warning: the most similar name among the hooks that the module does not have."""
    left = [hook for hook in _ARGUMENT if not hasattr(module, hook)]
    found = difflib.get_close_matches(name, left, n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else "; the hooks are " + ", ".join(_ARGUMENT)
