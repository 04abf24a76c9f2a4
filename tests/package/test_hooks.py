"""The functions of the module of `--hooks`."""

import logging
import signal

import pytest

from tailrace import RequestTimeout
from tailrace.errors import ConfigError, HookError, LoadError
from tailrace.master.plan import LEAVING
from tailrace.worker import hooks
from tailrace.worker.debug import Stopped
from tailrace.worker.hooks import Hooks, WorkerInfo

WORKER = WorkerInfo(number=2, pid=4711, generation=1)

ALL = """
    calls = []
    def on_start(): calls.append("on_start")
    def post_fork(worker): calls.append(("post_fork", worker))
    def worker_start(worker): calls.append(("worker_start", worker))
    def pre_request(environ): calls.append(("pre_request", environ))
    def post_request(record): calls.append(("post_request", record))
    def worker_stop(worker): calls.append(("worker_stop", worker))
    def worker_exit(worker): calls.append(("worker_exit", worker))
    def on_exit(): calls.append("on_exit")
"""


def test_without_a_module_there_are_no_hooks_and_calls_do_nothing():
    none = hooks.read(None)
    none.on_start()
    none.post_fork(WORKER)
    none.worker_start(WORKER)
    none.follow()
    assert none.around(str, gevent=False) is str
    none.worker_stop(WORKER, 1.0)
    none.worker_exit(WORKER)
    none.on_exit()
    assert none == Hooks()


def test_each_hook_is_called_with_what_it_takes(modules, caplog):
    modules(myhooks=ALL)
    found = hooks.read("myhooks")
    found.on_start()
    found.post_fork(WORKER)
    found.worker_start(WORKER)
    assert found.around(lambda environ, start_response: environ, gevent=False)("environ", None) == "environ"
    found.worker_stop(WORKER, 1.0)
    ended = WorkerInfo(2, 4711, 1, exit_signal=signal.SIGKILL)
    found.worker_exit(ended)
    found.on_exit()
    import myhooks

    assert myhooks.calls == [
        "on_start",
        ("post_fork", WORKER),
        ("worker_start", WORKER),
        ("pre_request", "environ"),
        ("worker_stop", WORKER),
        ("worker_exit", ended),
        "on_exit",
    ]
    assert not caplog.records


def test_each_hook_is_optional_and_a_file_will_do(modules):
    directory = modules(only="seen = []\ndef on_exit(): seen.append(1)\n")
    found = hooks.read(str(directory / "only.py"))
    found.on_start()
    found.on_exit()
    import only

    assert only.seen == [1]


@pytest.mark.parametrize(
    ("source", "warning"),
    [
        (
            "def on_startup(): pass",
            "on_startup is not a hook, so it is not called; did you mean on_start?",
        ),
        (
            "def worker_strat(worker): pass",
            "worker_strat is not a hook, so it is not called; did you mean worker_start?",
        ),
        (
            "def post_forked(worker): pass",
            "post_forked is not a hook, so it is not called; did you mean post_fork?",
        ),
        (
            "def when_ready(server): pass",
            "when_ready is not a hook, so it is not called; the hooks are on_start, post_fork",
        ),
        (
            "def unrelated(): pass",
            "the module defines no hook; the hooks are on_start, post_fork, worker_start, pre_request, "
            "post_request, worker_stop, worker_exit, on_exit",
        ),
    ],
)
def test_a_name_that_is_no_hook_is_warned_of_with_the_nearest(modules, caplog, source, warning):
    modules(near=source + "\n")
    assert hooks.read("near").functions == {}
    assert warning in caplog.text


def test_what_the_module_imports_or_keeps_private_is_not_taken_for_a_hook(modules, caplog):
    modules(
        other="def on_event(): pass\n",
        quiet="from other import on_event\ndef _on_something(): pass\ndef on_exit(): pass\n",
    )
    assert list(hooks.read("quiet").functions) == ["on_exit"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def on_start(server): pass",
            "on_start is called with no arguments, but is defined as on_start(server); write `def on_start():`",
        ),
        (
            "def post_fork(): pass",
            "post_fork is called with one argument, the worker, but is defined as post_fork(); write ",
        ),
        ("def worker_exit(server, worker): pass", "worker_exit is called with one argument"),
        (
            "def pre_request(worker, req): pass",
            "pre_request is called with one argument, the environ, but is defined as pre_request(worker, req); "
            "write `def pre_request(environ):`",
        ),
        ("def post_request(worker, req, environ, resp): pass", "write `def post_request(record):`"),
        ("on_exit = 3", "on_exit is an int, not a function"),
        ("async def on_start(): pass", "on_start is async, and nothing would await it"),
        ("def on_start():\n  yield", "on_start is a generator, and nothing would run it"),
    ],
)
def test_a_hook_that_cannot_be_called_is_one_clear_line(modules, source, message):
    modules(wrong=source + "\n")
    with pytest.raises(ConfigError) as caught:
        hooks.read("wrong")
    assert str(caught.value).startswith("--hooks wrong: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_defaults_and_star_arguments_are_fine(modules):
    modules(loose="def on_start(verbose=True): pass\ndef worker_exit(*args): pass\n")
    assert set(hooks.read("loose").functions) == {"on_start", "worker_exit"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent_hooks", "no module named 'absent_hooks'"),
        ("hooks:on_start", "write only the name of the module: hooks"),
    ],
)
def test_a_module_that_is_not_there_is_a_load_error(modules, name, message):
    modules()
    with pytest.raises(LoadError, match=message):
        hooks.read(name)


FAILING = """
    def boom():
        raise RuntimeError("no database")
    def on_start(): boom()
    def post_fork(worker): boom()
    def worker_start(worker): raise SystemExit(4)
    def worker_exit(worker): boom()
    def on_exit(): boom()
"""


@pytest.mark.parametrize(("name", "arguments"), [("on_start", ()), ("post_fork", (WORKER,))])
def test_a_failing_hook_fails_its_process_with_the_traceback(modules, name, arguments):
    modules(failing=FAILING)
    with pytest.raises(HookError, match=rf"the hook failing\.{name} failed: RuntimeError: no database") as caught:
        getattr(hooks.read("failing"), name)(*arguments)
    trace = caught.value.user_traceback
    assert f"in {name}" in trace
    assert "in boom" in trace
    assert hooks.__file__ not in trace


def test_sys_exit_in_a_hook_is_a_failure_and_no_exit(modules):
    modules(failing=FAILING)
    with pytest.raises(HookError, match="SystemExit: 4"):
        hooks.read("failing").worker_start(WORKER)


@pytest.mark.parametrize(("name", "arguments"), [("worker_exit", (WORKER,)), ("on_exit", ())])
def test_a_failing_hook_at_an_end_is_logged_with_its_traceback(modules, caplog, name, arguments):
    modules(failing=FAILING)
    getattr(hooks.read("failing"), name)(*arguments)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"the hook failing.{name} failed: RuntimeError: no database" in record.getMessage()
    assert "in boom" in record.getMessage()


@pytest.mark.parametrize("error", [RequestTimeout, KeyboardInterrupt, Stopped])
def test_what_interrupts_a_request_passes_through_its_hook(modules, caplog, error):
    modules(interrupted="def pre_request(environ): raise environ\n")
    with pytest.raises(error):
        hooks.read("interrupted").around(None, gevent=False)(error(), None)
    assert not caplog.records


def test_the_end_of_a_greenlet_passes_through_its_hook(modules, caplog):
    greenlet = pytest.importorskip("greenlet")
    modules(interrupted="def pre_request(environ): raise environ\n")
    application = hooks.read("interrupted").around(lambda environ, start_response: "called", gevent=True)
    with pytest.raises(greenlet.GreenletExit):
        application(greenlet.GreenletExit(), None)
    assert application(SystemExit(), None) == "called"
    assert len(caplog.records) == 1


def test_the_application_with_a_hook_has_its_attributes(modules):
    modules(one="def pre_request(environ): pass\n")
    assert hooks.read("one").around(lambda: 0, gevent=False).__qualname__.endswith("<lambda>")


def test_the_alarm_of_a_stop_is_taken_back(modules):
    modules(quick="def worker_stop(worker): pass\n")
    before = signal.getsignal(signal.SIGALRM)
    hooks.read("quick").worker_stop(WORKER, 60.0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == before


def test_the_time_of_a_stop_and_its_end_by_force_are_within_what_the_master_waits():
    assert hooks.MIN_TO_STOP + hooks._BY_FORCE_AFTER < LEAVING


@pytest.mark.parametrize(
    ("changed", "ending"),
    [
        ({}, "still running"),
        ({"exit_status": 3}, "status 3"),
        ({"exit_signal": 9}, "SIGKILL"),
        ({"exit_signal": 40}, "signal 40"),
    ],
)
def test_a_worker_tells_how_it_ended(changed, ending):
    assert WorkerInfo(1, 2, 0, **changed).ending == ending
