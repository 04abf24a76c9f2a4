"""A callback for a client that disconnects, without a server."""

import threading

import pytest

from tailrace.worker.subscription import Subscription


@pytest.mark.parametrize("end", [Subscription.end, Subscription.remove, lambda each: each.__exit__(None, None, None)])
def test_a_callback_is_called_once_and_not_after_its_end(end):
    called = []
    subscription = Subscription(lambda: called.append(True), lambda: False)
    subscription.run()
    subscription.run()
    assert called == [True]
    ended = Subscription(lambda: called.append(True), lambda: False)
    end(ended)
    ended.run()
    assert called == [True]


def test_if_the_client_has_left_the_end_of_its_block_calls_it_once():
    called = []
    with Subscription(lambda: called.append(True), lambda: True) as subscription:
        assert called == []
    subscription.remove()
    subscription.run()
    assert called == [True]


def test_the_end_of_its_block_waits_while_it_runs():
    entered, may_end, ended = threading.Event(), threading.Event(), []

    def callback():
        entered.set()
        may_end.wait(20)
        ended.append(True)

    subscription = Subscription(callback, lambda: True)
    runs = threading.Thread(target=subscription.run)
    runs.start()
    assert entered.wait(20)
    # That of a request does not wait: it would keep a thread of the application.
    subscription.end()
    assert ended == []
    removed = threading.Thread(target=lambda: (subscription.remove(), ended.append("removed")))
    removed.start()
    removed.join(0.05)
    assert ended == []
    may_end.set()
    removed.join(20)
    runs.join(20)
    assert ended == [True, "removed"]


def test_a_callback_may_remove_itself_and_may_raise(caplog):
    made = []

    def callback():
        made[0].remove()
        raise SystemExit

    made.append(Subscription(callback, lambda: True))
    made[0].run()
    assert "exception in a callback of tailrace.on_disconnect" in caplog.text
