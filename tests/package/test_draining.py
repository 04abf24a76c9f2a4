import contextlib
import gc
import os
import signal
import threading
import time

import pytest
from server.probes import eventually

import tailrace
from tailrace.system import draining, forks


def app(environ, start_response):
    start_response("200 OK", [])
    return [b""]


@pytest.fixture(autouse=True)
def no_other_servers(monkeypatch):
    """Other tests of this process may have left some."""
    monkeypatch.setattr(draining, "_servers", [])


@contextlib.contextmanager
def stopping(graceful_timeout):
    """A server that was told to stop inside the block, and what follows it; with the thread that waits for its end."""
    found, over = [], threading.Event()

    def serve():
        with tailrace.serve_in_thread(app, bind="127.0.0.1:0", graceful_timeout=graceful_timeout):
            found.append(draining.follow()[0])
            found[0].settimeout(0)
            with pytest.raises(BlockingIOError):
                found[0].recv(1)
            over.set()

    thread = threading.Thread(target=serve)
    thread.start()
    assert over.wait(60)
    (follower,) = found
    follower.settimeout(60)
    with follower:
        yield follower, thread
    thread.join(60)
    assert not thread.is_alive()


def test_a_draining_server_waits_for_what_follows_it():
    with stopping(600) as (follower, thread):
        assert follower.recv(1) == b""
        thread.join(0.3)
        assert thread.is_alive()
        late, _ = draining.follow()
        assert late.recv(1) == b""
        late.close()


def test_it_does_not_wait_longer_than_for_requests():
    with stopping(0.2) as (follower, thread):
        assert follower.recv(1) == b""
        thread.join(60)
        assert not thread.is_alive()


def test_a_server_that_has_gone_cannot_be_followed():
    with stopping(0):
        pass

    def is_gone():
        gc.collect()
        if found := draining.follow():
            draining.leave(found[0])
        return found is None

    eventually(is_gone, "the end of the server")


def test_the_newest_server_that_lives_is_followed():
    def serve():
        return tailrace.serve_in_thread(app, bind="127.0.0.1:0", graceful_timeout=60)

    with serve():
        older, number = draining.follow()
        with serve():
            newer, other = draining.follow()
            assert other > number
            again, same = draining.follow({other})
            assert same == number
            for follower in (newer, again):
                draining.leave(follower)

        def is_followed():
            # The other one may not be gone yet.
            gc.collect()
            follower, found = draining.follow()
            draining.leave(follower)
            return found == number

        eventually(is_followed, "the end of the newer server")
        assert draining.follow({number}) is None
        older.settimeout(0)
        with pytest.raises(BlockingIOError):
            older.recv(1)
        draining.leave(older)


def test_a_child_that_was_forked_before_children_lose_the_socket_does_not_keep_the_server(monkeypatch):
    children, keep = [], forks.keep_from_children

    def fork(*found):
        if not (child := os.fork()):
            time.sleep(600)
            os._exit(0)
        children.append(child)
        keep(*found)

    monkeypatch.setattr(forks, "keep_from_children", fork)
    try:
        with stopping(600) as (follower, thread):
            monkeypatch.undo()
            assert follower.recv(1) == b""
            draining.leave(follower)
            thread.join(60)
            assert not thread.is_alive()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
