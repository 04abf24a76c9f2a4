"""The dump of all greenlets."""

import io
import re
import threading

import gevent
from gevent.event import Event
from greenlet import getcurrent

from tailrace.greenlets.dump import dump, text

from .test_greenlets_hub import on_a_hub, run_hub


def of_the_application(door):
    door.wait()


@on_a_hub
def test_greenlets_at_the_same_place_stand_together_and_the_most_frequent_first(core, greenlets, ended):
    door = Event()

    def stream():
        gevent.sleep(1000)

    def other():
        door.wait()

    core.ask(*[other, *[stream] * 8])
    run_hub()
    refresh = gevent.spawn(of_the_application, door)
    refresh.name = "refresh"
    run_hub()
    said = text([greenlets])
    lines = said.splitlines()
    assert re.fullmatch(
        r"greenlets: 9 in requests, 1 of the application, \d parked; 0 requests wait; hub on thread \d+", lines[0]
    )
    assert lines[1] == "request 2: GET /stream from 127.0.0.1:1, for 1.500 s"
    assert lines[6] == "and 3 more, at"
    # Of the real core there are no frames.
    assert "in run_requests" in lines[7]
    assert re.fullmatch(rf'  File "{__file__}", line \d+, in stream', lines[9])
    assert lines[10] == "    gevent.sleep(1000)"
    assert "request 1: GET /other from 127.0.0.1:1, for 1.500 s, at\n" in said
    assert "greenlet refresh of the application, at\n" in said
    assert said.endswith("    door.wait()")
    assert "gevent/" not in said, "that it waits is plain"
    door.set()
    for each in list(greenlets.greenlets.values()):
        gevent.kill(each)
    run_hub()


@on_a_hub
def test_the_request_that_calls_dump_is_shown_with_its_own_stack(core, greenlets, ended):
    said = []

    def asks():
        said.append(text([greenlets]))

    core.ask(asks)
    run_hub()
    assert "request 1: GET /asks from 127.0.0.1:1, for 1.500 s, at\n" in said[0]
    assert said[0].endswith("in asks\n    said.append(text([greenlets]))")


@on_a_hub
def test_another_thread_may_ask(core, greenlets, ended):
    said = []

    def holds():
        thread = threading.Thread(target=lambda: said.append(text([greenlets])))
        thread.start()
        thread.join()

    core.ask(holds)
    run_hub()
    assert ", in holds\n    thread." in said[0]


@on_a_hub
def test_it_goes_to_the_log_or_to_a_file(core, greenlets, ended):
    dump()
    [(level, said)] = core.logged
    assert level == "warning"
    assert said.startswith("greenlets: 0 in requests")
    file = io.StringIO()
    dump(file)
    assert file.getvalue().startswith("greenlets: 0 in requests")
    assert len(core.logged) == 1


class Nameless(gevent.Greenlet):
    @property
    def name(self):
        raise LookupError("no name")


@on_a_hub
def test_an_error_during_a_dump_is_written_and_not_raised(core, greenlets, ended):
    nameless = Nameless.spawn(gevent.sleep, 1000)
    run_hub()
    dump()
    assert core.logged == [("warning", "greenlets: cannot read their stacks: LookupError('no name')")]
    nameless.kill()


@on_a_hub
def test_the_main_greenlet_of_a_program_is_shown_too(core, greenlets, ended):
    assert "main greenlet" not in text([greenlets])
    greenlets.is_embedded = True
    assert "main greenlet of the application, at\n" in text([greenlets])


@on_a_hub
def test_objects_with_a_false_class_attribute_are_skipped(core, greenlets, ended):
    class Liar:
        @property
        def __class__(self):
            raise AssertionError("nobody may ask")

    kept = Liar()
    text([greenlets])
    del kept


def test_without_a_server_it_goes_to_the_loggers(caplog):
    dump()
    assert "greenlets: 0 in requests, 0 of the application, 0 parked; 0 requests wait" in caplog.text
    assert getcurrent().parent is None
