"""Hooks: functions of the module that `--hooks` names, called at certain times in the master and in its workers.

    def on_start(): ...              # master: sockets are bound, no worker is forked yet
    def post_fork(worker): ...       # worker: just forked, the application not yet loaded (unless --preload)
    def worker_ready(worker): ...    # worker: application loaded, no request yet: warm caches, open connections
    def worker_exit(worker): ...     # master: the process has ended, for whatever reason
    def on_exit(): ...               # master: the last thing before it ends

Each is optional; `worker` is a `WorkerInfo`. The master imports the module once, so the module should not import the
application. An exception in a hook is never swallowed: in `on_start` it stops the server, in `post_fork` and
`worker_ready` the worker fails as if the application had not loaded, in `worker_exit` and `on_exit` it is logged with
its traceback.

Thread: the main thread of the master or of the worker, as said above.
"""

from __future__ import annotations

import difflib
import inspect
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from tailrace.cli import callables, load, tracebacks
from tailrace.process import forks, log
from tailrace.process.errors import ConfigError, HookError

ON_START: Final = "on_start"
POST_FORK: Final = "post_fork"
WORKER_READY: Final = "worker_ready"
WORKER_EXIT: Final = "worker_exit"
ON_EXIT: Final = "on_exit"
# Whether each is called with the worker.
_TAKES_WORKER: Final = {ON_START: False, POST_FORK: True, WORKER_READY: True, WORKER_EXIT: True, ON_EXIT: False}
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


@dataclass(frozen=True)
class Hooks:
    """The functions that the module has, by name; none without `--hooks`."""

    module: str = ""
    functions: Mapping[str, Callable[..., object]] = field(default_factory=dict)

    def on_start(self) -> None:
        """In the master, before the first worker. Raises HookError."""
        self._call(ON_START)

    def post_fork(self, worker: WorkerInfo) -> None:
        """In the worker, before it loads the application. Raises HookError."""
        self._call(POST_FORK, worker)

    def worker_ready(self, worker: WorkerInfo) -> None:
        """In the worker, before it tells the master that it is ready. Raises HookError."""
        self._call(WORKER_READY, worker)

    def worker_exit(self, worker: WorkerInfo) -> None:
        """In the master, when the worker has been reaped. What it raises is logged."""
        self._call_and_log(WORKER_EXIT, worker)

    def on_exit(self) -> None:
        """In the master, when all workers have ended. What it raises is logged."""
        self._call_and_log(ON_EXIT)

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
            "hooks %s: the function %s is not a hook, so it is not called%s", name, other, _nearest(other, module)
        )
    functions = {hook: getattr(module, hook) for hook in _TAKES_WORKER if hasattr(module, hook)}
    for hook, function in functions.items():
        _check(name, hook, function)
    if not functions:
        log.logger.warning("hooks %s: the module defines no hook; the hooks are %s", name, ", ".join(_TAKES_WORKER))
    return Hooks(name, functions)


def _check(module: str, name: str, function: Any) -> None:
    """Raises ConfigError unless the hook can be called."""
    remedy = f"write `def {name}({'worker' * _TAKES_WORKER[name]}):`"
    if not callable(function):
        raise ConfigError(f"hooks {module}: {name} is {callables.kind_of(function)}, not a function; {remedy}")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"hooks {module}: {name} is async, and nothing would await it; {remedy}")
    if inspect.isgeneratorfunction(function):
        raise ConfigError(f"hooks {module}: {name} is a generator, and nothing would run it; {remedy}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a function in C without a signature
    try:
        signature.bind(*(None,) * _TAKES_WORKER[name])
    except TypeError:
        given = "one argument, the worker" if _TAKES_WORKER[name] else "no arguments"
        raise ConfigError(
            f"hooks {module}: {name} is called with {given}, but is {name}{signature}; {remedy}"
        ) from None


def _suspicious(module: ModuleType) -> list[str]:
    """Functions that the module itself defines and that look like a misspelt hook."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and name not in _TAKES_WORKER
        and not name.startswith("_")
        and (name.startswith(_PREFIXES) or difflib.get_close_matches(name, _TAKES_WORKER, n=1, cutoff=0.8))
    ]


def _nearest(name: str, module: ModuleType) -> str:
    """The end of a warning: the most similar name among the hooks that the module does not have."""
    left = [hook for hook in _TAKES_WORKER if not hasattr(module, hook)]
    found = difflib.get_close_matches(name, left, n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else "; the hooks are " + ", ".join(_TAKES_WORKER)
