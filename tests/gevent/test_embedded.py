"""`tailrace.gevent` in a program that runs its own hub. Each program is a process of its own, patched or not."""

import subprocess
import sys
from textwrap import dedent

import pytest

BEFORE = """
import contextlib, gevent, gevent.event, gevent.socket, os, socket, sys, threading, time
import tailrace, tailrace.gevent

def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path.startswith("/sleep"):
        gevent.sleep(float(path.rpartition("/")[2]))
    body = path.encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]

def get(url, path="/", close=True):
    # gevent's own sockets: the program need not be patched.
    from gevent import socket
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(f"GET {path} HTTP/1.1\\r\\nHost: test\\r\\nConnection: close\\r\\n\\r\\n".encode())
        data = b""
        while piece := client.recv(65536):
            data += piece
    head, _, body = data.partition(b"\\r\\n\\r\\n")
    return int(head.split()[1]) if head else 0, body

def await_running(server, count=1):
    while server.stats()["running"] < count:
        gevent.sleep(0.01)

def pongs(url, count):
    from gevent import socket
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        for _ in range(count):
            client.sendall(b"GET / HTTP/1.1\\r\\nHost: test\\r\\n\\r\\n")
            data = b""
            while not data.endswith(b"\\r\\n\\r\\n/"):
                data += client.recv(65536)
"""
PATCH = "from gevent import monkey\nmonkey.patch_all()\n"

PATCHED = pytest.mark.parametrize("first", ["", PATCH], ids=["unpatched", "patched"])


def program(script, first="", deadline=60):
    """Runs a program to its end, which must come by itself and be clean."""
    text = first + BEFORE + dedent(script)
    try:
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, timeout=deadline, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"the program hangs: {late.stdout!r} {late.stderr!r}")
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "panicked" not in done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@PATCHED
def test_a_server_serves_on_the_hub_of_its_program(first):
    # Fails when the program must be patched, or when the end leaves the hub with something to wait for.
    program(
        """
        from gevent import monkey
        patched = monkey.is_module_patched("socket")
        server = tailrace.gevent.serve(app)
        assert server.started and not server.closed
        assert server.url.startswith("http://127.0.0.1:")
        assert get(server.url, "/one") == (200, b"/one")
        got = [gevent.spawn(get, server.url, f"/sleep/0.0{n}") for n in range(10)]
        gevent.joinall(got, raise_error=True)
        assert [each.value for each in got] == [(200, f"/sleep/0.0{n}".encode()) for n in range(10)]
        server.stop()
        assert server.closed
        try:
            get(server.url)
        except OSError:
            pass
        else:
            raise AssertionError("it still listens")
        assert monkey.is_module_patched("socket") == patched
        # Nothing of ours keeps the hub from its end.
        assert gevent.get_hub().join(timeout=20)
        """,
        first,
    )


@PATCHED
def test_two_servers_on_one_hub(first):
    # Fails when a ticket, a wakeup or a worker greenlet of the one reaches the other.
    program(
        """
        def other(environ, start_response):
            gevent.sleep(0.001)
            start_response("200 OK", [("Content-Length", "5")])
            return [b"other"]

        with tailrace.gevent.serve(app) as one, tailrace.gevent.serve(other) as two:
            assert one.url != two.url
            got = [gevent.spawn(get, (one if n % 2 else two).url, f"/sleep/0.00{n % 7}") for n in range(200)]
            gevent.joinall(got, raise_error=True)
            for n, each in enumerate(got):
                assert each.value == (200, f"/sleep/0.00{n % 7}".encode() if n % 2 else b"other")
            one.stop()
            assert get(two.url) == (200, b"other")
        assert two.closed
        """,
        first,
    )


def test_a_server_calls_another_one_of_its_program_and_itself():
    # Fails when a request of a server cannot wait for another of the same hub.
    program(
        """
        def asking(environ, start_response):
            if environ["PATH_INFO"] == "/deep":
                depth = int(environ["QUERY_STRING"])
                body = get(server.url, f"/deep?{depth - 1}")[1] + b"." if depth else b""
            else:
                body = get(other.url, "/from")[1]
            start_response("200 OK", [("Content-Length", str(len(body)))])
            return [body]

        other = tailrace.gevent.serve(app)
        server = tailrace.gevent.serve(asking)
        assert get(server.url, "/other") == (200, b"/from")
        assert get(server.url, "/deep?40") == (200, b"." * 40)
        server.stop()
        other.stop()
        """
    )


def test_hubs_of_several_threads_have_a_server_each():
    # Fails when what belongs to a hub is kept once for the process.
    program(
        """
        def run(number, results):
            server = tailrace.gevent.serve(app)
            got = [gevent.spawn(get, server.url, f"/sleep/0.0{n % 3}") for n in range(50)]
            gevent.joinall(got, raise_error=True)
            results.append([each.value[0] for each in got] == [200] * 50)
            server.stop()
            gevent.get_hub().destroy()

        results = []
        threads = [threading.Thread(target=run, args=(n, results)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
            assert not thread.is_alive()
        assert results == [True] * 3
        """
    )


@PATCHED
def test_a_request_may_stop_its_own_server(first):
    # Fails when stop() waits for the request that calls it.
    program(
        """
        def stopping(environ, start_response):
            if environ["PATH_INFO"] == "/stop":
                server.stop()
            else:
                gevent.sleep(0.3)
            start_response("200 OK", [("Content-Length", "4")])
            return [b"last"]

        server = tailrace.gevent.Server(stopping)
        server.start()
        slow = gevent.spawn(get, server.url, "/slow")
        await_running(server)
        assert get(server.url, "/stop") == (200, b"last")
        assert slow.get(timeout=20) == (200, b"last")
        with gevent.Timeout(20):
            server.stop()
        assert server.closed
        """,
        first,
    )


def test_stop_cuts_off_what_does_not_end_in_its_time():
    # Fails when a sleeping worker greenlet keeps the stop, or the program, for as long as it sleeps.
    program(
        """
        server = tailrace.gevent.serve(app)
        slow = gevent.spawn(get, server.url, "/sleep/3600")
        await_running(server)
        server.stop(0.2)
        assert server.closed
        try:
            assert slow.get(timeout=20)[1] == b""
        except OSError:
            pass
        """
    )


def test_a_stop_waits_for_those_that_end_in_time():
    program(
        """
        door = gevent.event.Event()
        def waiting(environ, start_response):
            door.wait()
            return app(environ, start_response)

        server = tailrace.gevent.serve(waiting, graceful_timeout=50)
        slow = [gevent.spawn(get, server.url, "/slow") for _ in range(100)]
        await_running(server, 100)
        stopping = gevent.spawn(server.stop)
        with contextlib.suppress(OSError):
            while True:
                gevent.socket.create_connection(server.address).close()
        assert not stopping.dead
        door.set()
        stopping.get(timeout=20)
        assert [each.get(timeout=20) for each in slow] == [(200, b"/slow")] * 100
        """
    )


def test_serve_forever_ends_by_stop():
    program(
        """
        import signal
        server = tailrace.gevent.Server(app)
        gevent.signal_handler(signal.SIGTERM, server.stop)
        def later():
            while not server.started:
                gevent.sleep(0.01)
            assert get(server.url)[0] == 200
            os.kill(os.getpid(), signal.SIGTERM)
        checked = gevent.spawn(later)
        server.serve_forever()
        assert server.closed
        checked.get(timeout=20)
        """
    )


def test_a_serving_server_keeps_the_hub():
    # As pywsgi's does; fails when hub.join() returns at once, or never.
    program(
        """
        server = tailrace.gevent.serve(app)
        assert not gevent.get_hub().join(timeout=0.3)
        gevent.spawn_later(0.2, server.stop)
        assert gevent.get_hub().join(timeout=20)
        assert server.closed
        """
    )


def test_a_program_may_end_while_it_serves():
    # Fails when a worker greenlet, the I/O thread or the watch outlives the interpreter: the end would hang or abort.
    program(
        """
        server = tailrace.gevent.serve(app, stream_body=True)
        for _ in range(50):
            gevent.spawn(get, server.url, "/sleep/3600")
        await_running(server, 50)
        sys.stdout.flush()
        """
    )


def test_a_unix_socket_and_a_busy_address(tmp_path):
    program(
        f"""
        path = {str(tmp_path / "socket")!r}
        with tailrace.gevent.serve(app, bind="unix:" + path) as server:
            assert os.path.exists(path)
            assert server.url == "unix:" + path
        with tailrace.gevent.serve(app) as server:
            try:
                tailrace.gevent.serve(app, bind=server.url.removeprefix("http://"))
            except tailrace.BindError:
                pass
            else:
                raise AssertionError("two servers on one address")
            assert get(server.url)[0] == 200
        """
    )


def test_plain_requests_are_carried_by_few_greenlets():
    # Fails when the test of being as good as new is too strict: each request would cost a greenlet.
    program(
        """
        server = tailrace.gevent.serve(app)
        gevent.get_hub().threadpool.apply(lambda: None)
        pongs(server.url, 1000)
        made = server.stats()["greenlets_made"]
        assert 0 < made < 100, made
        for _ in range(300):
            assert get(server.url, "/sleep/0.0001")[0] == 200
        made = server.stats()["greenlets_made"] - made
        # Being woken by the hub is no reason to end it.
        assert made < 100, made
        server.stop()
        """
    )


def test_greenlets_that_are_no_longer_as_new_are_replaced():
    # The counterpart: fails when the count cannot tell.
    program(
        """
        from gevent.local import local
        mine = local()
        def marking(environ, start_response):
            assert not hasattr(mine, "value")
            mine.value = 1
            start_response("200 OK", [("Content-Length", "1")])
            return [b"/"]
        server = tailrace.gevent.serve(marking)
        pongs(server.url, 200)
        assert server.stats()["greenlets_made"] >= 200
        server.stop()
        """
    )


def test_a_program_is_told_of_a_blocked_hub_and_may_dump_its_greenlets():
    out = program(
        """
        import io, logging
        logging.basicConfig(stream=sys.stdout, level=logging.INFO)
        def blocking(environ, start_response):
            if environ["PATH_INFO"] == "/":
                block_here()
            return app(environ, start_response)
        def block_here():
            time.sleep(0.7)
        server = tailrace.gevent.serve(blocking)
        gevent.get_hub().threadpool.apply(lambda: None)
        assert get(server.url)[0] == 200
        gevent.spawn(get, server.url, "/sleep/3600")
        await_running(server)
        file = io.StringIO()
        tailrace.gevent.dump(file)
        assert "GET /sleep/3600" in file.getvalue() and "in app" in file.getvalue(), file.getvalue()
        server.stop(0)
        """
    )
    assert "in block_here" in out


def test_servers_that_come_and_go_leave_nothing():
    # Fails when a wakeup, a listener, a connection or a thread of a server that was stopped stays.
    program(
        """
        def cycle():
            with tailrace.gevent.serve(app, graceful_timeout=0.1) as server:
                got = [gevent.spawn(get, server.url, "/sleep/0.01") for _ in range(20)]
                gevent.joinall(got)
                idle = socket.create_connection(server.url.removeprefix("http://").split(":"))
            idle.close()

        def things():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        for _ in range(3):
            cycle()
        before = things()
        for _ in range(10):
            cycle()
        for _ in range(100):
            after = things()
            if after[0] <= before[0] and after[1] <= before[1]:
                break
            gevent.sleep(0.05)
        else:
            raise AssertionError((before, after))
        """
    )


@PATCHED
def test_a_tracer_of_switches_goes_on_and_ours_ends_with_the_server(first):
    program(
        """
        import greenlet
        for tracer in (None, lambda event, greenlets: seen.append(event)):
            seen = []
            greenlet.settrace(tracer)
            one = tailrace.gevent.serve(app)
            other = tailrace.gevent.serve(app)
            assert get(one.url) == (200, b"/")
            one.stop()
            assert greenlet.gettrace() not in (None, tracer)
            assert get(other.url) == (200, b"/")
            other.stop()
            assert greenlet.gettrace() is tracer
            assert bool(seen) is (tracer is not None)
        """,
        first,
    )
