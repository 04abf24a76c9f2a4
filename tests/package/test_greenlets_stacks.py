"""Stacks of greenlets and threads as text."""

import linecache
import sys
import threading

from tailrace.greenlets import stacks


def test_the_frames_that_carry_a_request_are_left_out_and_the_outermost_comes_first():
    stack = stacks.of(sys._getframe())
    assert stack[-1] == (sys._getframe(), stack[-1][1])
    assert stacks.shown(stack).endswith(
        "in test_the_frames_that_carry_a_request_are_left_out_and_the_outermost_comes_first\n"
        "    stack = stacks.of(sys._getframe())"
    )


def test_nothing_is_a_stack_too():
    assert stacks.of(None) == []
    assert stacks.of_thread(0) == []
    assert stacks.shown([]) == "  (no Python code)"


def test_the_same_line_of_the_same_calls_is_the_same_place():
    def here():
        return stacks.place(stacks.of(sys._getframe()))

    places = [here() for _ in range(2)]
    assert places[0] == places[1]
    assert places[0] != here()


def test_a_thread_is_shown_where_it_waits():
    entered, release = threading.Event(), threading.Event()

    def waits():
        entered.set()
        release.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    entered.wait()
    assert "in waits\n" in stacks.shown(stacks.of_thread(thread.ident))
    release.set()
    thread.join()


def test_a_source_that_cannot_be_read_is_no_failure(monkeypatch):
    def fails(*arguments):
        raise LookupError("no such source")

    monkeypatch.setattr(linecache, "getline", fails)
    monkeypatch.setattr(linecache, "checkcache", fails)
    assert stacks.shown(stacks.of(sys._getframe())) == "  (unknown: LookupError('no such source'))"
