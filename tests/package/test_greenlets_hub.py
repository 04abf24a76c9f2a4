"""WorkerGreenlets, with a core that is written in Python. The hub belongs to a thread of the test."""

import contextlib
import gc
import threading
import weakref

import gevent
import gevent.event
import gevent.local
import pytest
from greenlet import GreenletExit, getcurrent

from tailrace import ClientDisconnected, RequestTimeout
from tailrace.greenlets import hub
from tailrace.greenlets.hub import WorkerGreenlet, WorkerGreenlets

from .fake_core import Core


def on_a_hub(test):
    """Runs a test on a thread that has a hub, and ends that with it: nothing of gevent stays on pytest's thread."""

    def run():
        failed = []

        def body():
            core = Core()
            ended = []
            greenlets = WorkerGreenlets(core, lambda: ended.append(True))
            greenlets.start()
            try:
                with gevent.Timeout(30):
                    test(core, greenlets, ended)
            except BaseException as error:
                failed.append(error)
            finally:
                if not ended:
                    core.tell(ended=True)
                    while not ended:
                        gevent.sleep(0.001)
                gevent.get_hub().destroy(destroy_loop=True)
                core.close()

        thread = threading.Thread(target=body)
        thread.start()
        thread.join(60)
        if failed:
            raise failed[0]

    run.__name__ = test.__name__
    return run


def run_hub():
    """Lets the hub do what there is to do."""
    for _ in range(5):
        gevent.sleep(0)
        gevent.sleep(0.001)


def asks(core, *requests):
    core.ask(*requests)
    run_hub()


def tells(core, **what):
    core.tell(**what)
    run_hub()


def keeps_a_local():
    LOCAL.value = getattr(LOCAL, "value", 0) + 1
    SEEN.append(LOCAL.value)


def keeps_an_attribute():
    getcurrent().value = getattr(getcurrent(), "value", 0) + 1
    SEEN.append(getcurrent().value)


def is_kept():
    KEPT.append(getcurrent())
    SEEN.append(KEPT.count(getcurrent()))


def is_weakly_kept():
    WEAKLY[getcurrent()] = WEAKLY.get(getcurrent(), 0) + 1
    SEEN.append(WEAKLY[getcurrent()])


def keeps_a_local_and_waits():
    keeps_a_local()
    gevent.sleep(0)


def leaves_a_timer():
    # Its callback would meet whoever is in the greenlet then.
    TIMERS.append(gevent.Timeout(1000))
    TIMERS[-1].start()
    SEEN.append(1 if id(getcurrent()) not in IDS else 2)
    IDS.add(id(getcurrent()))
    KEPT.append(getcurrent())


LOCAL = gevent.local.local()
SEEN, KEPT, TIMERS, WEAKLY, IDS = [], [], [], weakref.WeakKeyDictionary(), set()


@pytest.mark.parametrize(
    "request_",
    [keeps_a_local, keeps_an_attribute, is_kept, is_weakly_kept, keeps_a_local_and_waits, leaves_a_timer],
    ids=lambda each: each.__name__,
)
def test_what_is_local_to_a_greenlet_is_local_to_a_request(request_):
    SEEN.clear()
    KEPT.clear()

    @on_a_hub
    def run(core, greenlets, ended):
        asks(core, *[request_] * 10)
        asks(core, request_)
        assert SEEN == [1] * 11
        assert not core.raised
        while TIMERS:
            TIMERS.pop().close()

    run()
    KEPT.clear()


@on_a_hub
def test_a_worker_greenlet_that_somebody_holds_ends_and_is_freed(core, greenlets, ended):
    kept = []
    asks(core, lambda: kept.append(getcurrent()))
    asks(core, lambda: None)
    assert kept[0].dead
    assert isinstance(kept[0], WorkerGreenlet)
    gone = weakref.ref(kept.pop())
    gc.collect()
    assert gone() is None


@on_a_hub
def test_a_late_switch_to_a_parked_worker_greenlet_does_nothing(core, greenlets, ended):
    late = []

    def resumed_twice():
        switch = getcurrent().switch
        gevent.get_hub().loop.run_callback(switch, "first")
        late.append(switch)
        assert gevent.get_hub().switch() == "first"

    asks(core, resumed_twice)
    core.queue.append(lambda: gevent.sleep(0))
    gevent.get_hub().loop.run_callback(late[0], "second")
    run_hub()
    assert core.requests == 1, "the greenlet was still held, so it is not as good as new"
    late.clear()
    asks(core)
    assert core.requests == 2
    assert not core.raised


@on_a_hub
def test_an_exception_thrown_into_a_parked_worker_greenlet_ends_it_without_a_log_line(core, greenlets, ended):
    kept, printed = [], []
    gevent.get_hub().print_exception = lambda *said: printed.append(said)

    def resumed():
        kept.append(getcurrent())
        gevent.sleep(0)

    asks(core, resumed)
    gevent.get_hub().loop.run_callback(kept[0].throw, LookupError)
    run_hub()
    assert kept[0].dead
    assert not printed
    asks(core, lambda: None)
    assert core.requests == 2


@on_a_hub
def test_a_pause_ends_when_its_ticket_is_returned(core, greenlets, ended):
    said = []
    asks(core, lambda: said.append(core.pause(7, None)))
    assert said == []
    tells(core, tickets=[8, 7])
    assert said == [True]
    tells(core, tickets=[7])
    assert said == [True]


@on_a_hub
def test_a_pause_ends_with_its_time_or_by_an_exception(core, greenlets, ended):
    assert core.pause(7, 0.001) is False
    with gevent.Timeout(0.001) as timeout, pytest.raises(gevent.Timeout) as caught:
        core.pause(7, 1000)
    assert caught.value is timeout
    tells(core, tickets=[7])
    assert not hub._waiting


@on_a_hub
def test_a_pause_in_the_hub_itself_is_an_error_and_leaves_nothing(core, greenlets, ended):
    failed = []

    def in_the_hub():
        try:
            core.pause(7, None)
        except BaseException as error:
            failed.append(type(error).__name__)

    gevent.get_hub().loop.run_callback(in_the_hub)
    run_hub()
    assert failed == ["BlockingSwitchOutError"]
    assert not hub._waiting


def late(slot, serial):
    return (slot, serial, "GET /x", 2.0, "the response is 504")


@on_a_hub
def test_a_deadline_ends_one_request_and_says_where_it_was(core, greenlets, ended):
    done = []

    def neighbour():
        gevent.sleep(0.02)
        done.append("neighbour")

    def sleeps():
        try:
            gevent.sleep(1000)
        except RequestTimeout:
            done.append("ended")
            raise

    asks(core, sleeps, neighbour)
    slot = next(slot for slot, (_, request) in core.running.items() if request is sleeps)
    core.tell(overdue=[late(slot, 1)])
    while len(done) < 2:
        gevent.sleep(0.005)
    assert sorted(done) == ["ended", "neighbour"]
    assert [type(error) for error in core.raised] == [RequestTimeout]
    [(level, text)] = core.logged
    assert level == "error"
    assert text.startswith(
        "GET /x: past its deadline after 2.000 s in the application; the response is 504; RequestTimeout is "
        "raised in its greenlet, which is at\n  File "
    )
    assert "in sleeps\n    gevent.sleep(1000)" in text
    assert "_body" not in text


@on_a_hub
def test_a_request_whose_client_has_left_is_cancelled_in_its_own_greenlet(core, greenlets, ended):
    called = []

    class Waits:
        def run(self):
            gevent.sleep(0.01)
            called.append(getcurrent())

    def sleeps():
        gevent.sleep(1000)

    def neighbour():
        assert core.pause(7, None)

    asks(core, sleeps, neighbour)
    slot, (serial, _) = next((slot, found) for slot, found in core.running.items() if found[1] is sleeps)
    subscribed = [Waits(), Waits()]
    core.subscribed = {(slot, serial): subscribed}
    core.tell(leaving=[(slot, 1234, True), (slot, serial, False)])
    while len(called) < 2:
        gevent.sleep(0.005)
    assert len(set(called)) == 2 and core.raised == []
    assert not any(isinstance(each, WorkerGreenlet) for each in called)
    tells(core, leaving=[(slot, serial, True)])
    assert [type(error) for error in core.raised] == [ClientDisconnected]
    tells(core, tickets=[7])
    assert len(core.raised) == 1 and not core.running


@on_a_hub
def test_a_request_that_goes_on_after_its_deadline_does_not_delay_new_requests(core, greenlets, ended):
    order = []

    def works():
        assert core.pause(7, None)
        order.append("works on")

    asks(core, works)
    core.ask(lambda: order.append("new"))
    tells(core, tickets=[7])
    assert order == ["new", "works on"]


@on_a_hub
def test_requesttimeout_is_raised_again_in_a_request_that_goes_on(core, greenlets, ended):
    times = []
    hub.overdue.AGAIN, before = 0.001, hub.overdue.AGAIN

    def stays():
        while len(times) < 3:
            try:
                gevent.sleep(1000)
            except RequestTimeout:
                times.append(1)

    try:
        asks(core, stays)
        core.tell(overdue=[late(next(iter(core.running)), 1)])
        while core.running:
            gevent.sleep(0.001)
    finally:
        hub.overdue.AGAIN = before
    assert len(times) == 3
    assert len(core.logged) == 1
    while greenlets._timers:
        gevent.sleep(0.001)


@on_a_hub
def test_a_request_that_has_ended_or_cleans_up_is_not_interrupted(core, greenlets, ended):
    asks(core, lambda: None)
    tells(core, overdue=[late(0, 1)])
    assert core.logged[-1][1].endswith("; it has just ended")
    core.closing.add(2)
    door = gevent.event.Event()
    asks(core, door.wait)
    tells(core, overdue=[late(next(iter(core.running)), 2)])
    assert "which is at\n" in core.logged[-1][1]
    assert core.running, "it cleans up"
    door.set()
    run_hub()
    assert not core.raised


@on_a_hub
def test_a_waiting_request_gets_requesttimeout_and_the_monitor_may_have_named_it(core, greenlets, ended):
    asks(core, lambda: core.pause(7, None))
    greenlets.named.add(1)
    tells(core, tickets=[7], overdue=[late(next(iter(core.running)), 1)])
    assert not core.logged
    assert not greenlets.named
    assert [type(error) for error in core.raised] == [RequestTimeout]


@on_a_hub
def test_an_error_in_the_hub_loses_no_ticket_and_no_deadline(core, greenlets, ended):
    printed, said = [], []
    gevent.get_hub().print_exception = lambda context, kind, *rest: printed.append(kind)
    asks(core, lambda: said.append(core.pause(7, None)))
    monkey = core.log

    def fails(level, text):
        core.log = monkey
        raise MemoryError

    core.log = fails
    core.queue.append(lambda: said.append("new"))
    core.tell(tickets=[7], overdue=[late(0, 99), late(0, 98)])
    while len(said) < 2:
        gevent.sleep(0.001)
    assert printed == [MemoryError]
    assert said == ["new", True]
    assert len(core.logged) == 1, "the second one that was late"


@on_a_hub
def test_an_error_that_repeats_delays_no_ticket_and_no_end(core, greenlets, ended):
    printed, said = [], []
    gevent.get_hub().print_exception = lambda context, kind, *rest: printed.append(kind)
    asks(core, lambda: said.append(core.pause(7, None)))

    def fails():
        raise MemoryError

    core.take_slot = core.is_as_new = fails
    core.queue.append(lambda: said.append("new"))
    tells(core, tickets=[7], ended=True)
    assert printed
    assert len(printed) < 3, "not again and again"
    assert said[0] is True
    assert ended == [True]


@on_a_hub
def test_ctrl_c_in_a_request_ends_it_and_goes_to_the_main_greenlet_of_a_program(core, greenlets, ended):
    gevent.get_hub().print_exception = lambda *said: None

    def interrupted():
        raise KeyboardInterrupt

    asks(core, interrupted)
    greenlets.is_embedded = True
    core.ask(interrupted)
    with pytest.raises(KeyboardInterrupt):
        gevent.sleep(10)
    run_hub()
    assert not greenlets.greenlets
    asks(core, lambda: None)
    assert core.requests == 3


@on_a_hub
def test_the_end_is_reported_once_and_ends_parked_greenlets(core, greenlets, ended):
    door = gevent.event.Event()
    asks(core, *[door.wait] * 5)
    door.set()
    run_hub()
    assert greenlets.parked
    assert greenlets in hub.living
    tells(core, ended=True)
    assert ended == [True]
    assert not greenlets.greenlets
    assert greenlets not in hub.living


@on_a_hub
def test_a_request_that_outlives_the_server_leaves_no_worker_greenlet(core, greenlets, ended):
    door = gevent.event.Event()
    asks(core, door.wait)
    tells(core, ended=True)
    assert len(greenlets.greenlets) == 1
    door.set()
    run_hub()
    assert not greenlets.greenlets


def test_systemexit_ends_only_its_greenlet():
    seen = []

    def body():
        hub.keep_running()

        def leaves():
            raise SystemExit(3)

        gevent.spawn(leaves)
        gevent.sleep(0.001)
        seen.append("goes on")
        with contextlib.suppress(GreenletExit):
            gevent.get_hub().destroy(destroy_loop=True)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(30)
    assert seen == ["goes on"]
