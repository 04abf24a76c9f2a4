"""`tailrace.on_delivery`: functions get the record of each response, and no request waits for them."""

import json

import pytest
from harness.addresses import free_address
from harness.operated import Operated, operating
from harness.wire import Client

import tailrace
from tailrace._tailrace import ATOMS

APP = """
import json, threading
import tailrace

def app(environ, start_response):
    if environ["PATH_INFO"] == "/raise":
        raise ValueError("as asked")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"x" * 100]

@tailrace.on_delivery
def broken(record):
    raise RuntimeError("no luck with " + record["target"])

@tailrace.on_delivery
def kept(record):
    with open("records", "a") as file:
        print(json.dumps({**record, "thread": threading.get_native_id()}), file=file)
"""


@pytest.mark.parametrize("preload", [(), ("--preload",)], ids=["", "preload"])
def test_functions_get_the_record_of_each_response_and_an_exception_is_logged_once(tmp_path, preload):
    (tmp_path / "app.py").write_text(APP)
    at = free_address()
    with operating(tmp_path, "app:app", *preload, "--status", at.bind) as server:
        # The functions are the workers', not those of the status process.
        with Client(at) as client:
            assert client.ask(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").status == 200
        for number in range(5):
            assert server.get(f"/{number}?a=b").status == 200
        assert server.get("/raise").status == 500
        with Client(server.address) as client:
            assert client.ask(b"GET nowhere HTTP/1.1\r\nHost: a\r\n\r\n").status == 400
        # The last records are given to the functions before the worker ends.
        server.stop()
        assert server.log.count("on_delivery: broken raised an exception; further exceptions are not logged") == 1
        assert server.log.count("RuntimeError: no luck with ") == 1
    records = [json.loads(line) for line in (tmp_path / "records").read_text().splitlines()]
    # A record comes when its connection knows that all has been sent, which may be after the next response.
    statuses = {each["target"]: each["status"] for each in records}
    assert statuses == {**{f"/{number}?a=b": 200 for number in range(5)}, "/raise": 500, "nowhere": 400}
    assert len(records) == 7
    (first,) = (each for each in records if each["target"] == "/0?a=b")
    (refused,) = (each for each in records if each["status"] == 400)
    assert (first["method"], first["bytes"], first["blocks"], first["writes"]) == ("GET", 100, 1, 1)
    assert (first["delivery"], first["ending"]) == ("one-write", "complete")
    assert first["client"].startswith("127.0.0.1:")
    assert first["drained_ms"] >= first["app_ms"] >= first["first_block_ms"] >= 0
    assert (refused["app_ms"], refused["drained_ms"]) == (None, None)
    assert len({each["thread"] for each in records}) == 1
    # The access log has each field under the same name.
    assert first.keys() - {"thread"} <= dict(ATOMS).keys()


ENDING = """
import tailrace

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"x"]

class Ending:
    \"\"\"Raises what would end a thread or a process. As it compares equal to others, it has no hash.\"\"\"

    def __init__(self, error):
        self.error = error

    def __eq__(self, other):
        return self.error is other.error

    def __call__(self, record):
        raise self.error

class Panic(BaseException):
    pass

try:
    from greenlet import GreenletExit
except ImportError:
    GreenletExit = type("GreenletExit", (BaseException,), {})

for error in (SystemExit(3), KeyboardInterrupt(), GeneratorExit(), GreenletExit(), Panic()):
    tailrace.on_delivery(Ending(error))

@tailrace.on_delivery
def kept(record):
    with open("records", "a") as file:
        print(record["target"], file=file)
"""


@pytest.mark.parametrize("mode", [(), ("--gevent",), ("--debug",)], ids=["threads", "gevent", "debug"])
def test_what_would_end_a_thread_ends_nothing_and_is_logged_once(tmp_path, mode):
    if mode == ("--gevent",):
        pytest.importorskip("gevent")
    (tmp_path / "app.py").write_text(ENDING)
    with Operated(tmp_path, "app:app", *mode) as server:
        server.logged("listening on")
        processes = server.processes()
        for number in range(20):
            assert server.get(f"/{number}").status == 200
        assert server.processes() == processes
        server.stop()
        assert server.log.count("raised an exception; further exceptions are not logged") == 5
        assert server.log.count("Traceback") == 5
    targets = (tmp_path / "records").read_text().split()
    assert sorted(targets) == sorted(f"/{number}" for number in range(20))


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="takes a function, not str"):
        tailrace.on_delivery("print")
