"""Is this Tailrace whole? Tries the installed package, one line a check, with nothing but the standard library and the
extra `status`.

    python tests/smoke.py

Serves the application in this file twice, from the command line and inside this process, and asks for every shape of
response. Exit status: 0 when every check is ok, 1 otherwise.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import http.client
import logging
import os
import platform
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEADLINE = 20.0
LARGE = 3_000_000
CONTENT = random.Random("smoke").randbytes(LARGE)

# The application


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
    """A path for each shape of response."""
    shape, _, argument = environ["PATH_INFO"][1:].partition("/")
    headers = [("Content-Type", "application/octet-stream")]
    if shape == "hello":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"Hello, World!\n"]
    if shape == "late-error":
        start_response("200 OK", headers)
        return broken()
    if shape == "error":
        raise ValueError("the application has failed")
    if shape == "file":
        file = open(make_file(), "rb")  # noqa: SIM115 - the server closes it
        start_response("200 OK", headers)
        return file
    if shape == "wrapper":
        file = open(make_file(), "rb")  # noqa: SIM115
        file.seek(LARGE - int(argument))
        start_response("200 OK", [*headers, ("Content-Length", argument)])
        return environ["wsgi.file_wrapper"](file)
    if shape == "write":
        write = start_response("200 OK", headers)
        write(b"first,")
        write(b"second,")
        return [b"last"]
    start_response("200 OK", headers)
    if shape == "generator":
        return (CONTENT[start : start + 1000] for start in range(0, int(argument), 1000))
    if shape == "hold":
        return hold(environ["QUERY_STRING"])
    if shape == "echo":
        return [environ["wsgi.input"].read()]
    if shape == "lines":
        return [b"|".join(line.rstrip() for line in environ["wsgi.input"])]
    if shape == "pause":
        time.sleep(0.05)
    if shape == "bytes":
        return CONTENT[: int(argument)]
    return [CONTENT[: int(argument or 0)]]


def broken() -> Iterator[bytes]:
    """Fails after the head."""
    yield b"first"
    raise ValueError("the generator has failed")


def hold(path: str) -> Iterator[bytes]:
    """Begins, and ends when the file exists."""
    yield b"begun,"
    deadline = time.monotonic() + DEADLINE
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.01)
    yield b"done"


_file: list[str] = []


def make_file() -> str:
    """The path of a file with the content; made once."""
    if not _file:
        handle, path = tempfile.mkstemp(prefix="tailrace-smoke-")
        with open(handle, "wb") as file:
            file.write(CONTENT)
        _file.append(path)
        atexit.register(os.unlink, path)
    return _file[0]


# The client


class Answer:
    """A complete response."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()
        self.closes = response.will_close


class Place:
    """Where a server listens."""

    def __init__(self, port: int) -> None:
        self.port = port

    def connection(self) -> http.client.HTTPConnection:
        """A connection that gives up in time."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)

    def ask(self, method: str, target: str, body: Any = None, **options: Any) -> Answer:
        """One request on a connection of its own."""
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, target, body, **options)
            return Answer(connection.getresponse())


def same(got: object, expected: object) -> None:
    """Fails with both values, shortened."""
    if got != expected:
        raise AssertionError(f"got {got!r:.200}, expected {expected!r:.200}")


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for what another process or thread does."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never: {what}")
        time.sleep(0.01)


def refuses(place: Place) -> None:
    """Fails when somebody still listens."""
    try:
        place.ask("GET", "/list/3")
    except ConnectionRefusedError:
        return
    raise AssertionError("it still listens")


# Checks of any server


def hello(place: Place) -> None:
    answer = place.ask("GET", "/hello")
    same((answer.status, answer.headers["Content-Type"], answer.body), (200, "text/plain", b"Hello, World!\n"))


def a_list(place: Place) -> None:
    answer = place.ask("GET", "/list/70000")
    same((answer.status, answer.headers["Content-Length"], answer.body), (200, "70000", CONTENT[:70000]))


def bare_bytes(place: Place) -> None:
    same(place.ask("GET", "/bytes/70000").body, CONTENT[:70000])


def an_empty_list(place: Place) -> None:
    answer = place.ask("GET", "/list/0")
    same((answer.status, answer.headers["Content-Length"], answer.body), (200, "0", b""))


def a_generator(place: Place) -> None:
    answer = place.ask("GET", f"/generator/{LARGE}")
    same((answer.headers["Transfer-Encoding"], answer.body), ("chunked", CONTENT))


def a_file(place: Place) -> None:
    same(place.ask("GET", "/file").body, CONTENT)


def a_file_wrapper(place: Place) -> None:
    answer = place.ask("GET", "/wrapper/1234567")
    same((answer.headers["Content-Length"], answer.body), ("1234567", CONTENT[-1234567:]))


def the_write_callable(place: Place) -> None:
    same(place.ask("GET", "/write").body, b"first,second,last")


def a_post(place: Place) -> None:
    same(place.ask("POST", "/echo", b"body").body, b"body")


def a_large_post(place: Place) -> None:
    same(place.ask("POST", "/echo", CONTENT).body, CONTENT)


def a_chunked_post(place: Place) -> None:
    pieces = (CONTENT[start : start + 7919] for start in range(0, LARGE, 7919))
    same(
        place.ask("POST", "/echo", pieces, encode_chunked=True, headers={"Transfer-Encoding": "chunked"}).body, CONTENT
    )


def a_body_by_lines(place: Place) -> None:
    same(place.ask("POST", "/lines", b"one\ntwo\n\nlast").body, b"one|two||last")


def head(place: Place) -> None:
    answer = place.ask("HEAD", "/list/5000")
    same((answer.status, answer.headers["Content-Length"], answer.body), (200, "5000", b""))


def keep_alive(place: Place) -> None:
    with contextlib.closing(place.connection()) as connection:
        connection.connect()
        sock = connection.sock
        for target, body in (("/list/10", CONTENT[:10]), ("/generator/9000", CONTENT[:9000]), ("/file", CONTENT)):
            connection.request("GET", target)
            same(Answer(connection.getresponse()).body, body)
            if connection.sock is not sock:
                raise AssertionError(f"the connection was closed after {target}")


def pipelining(place: Place) -> None:
    lengths = range(100, 130)
    with socket.create_connection(("127.0.0.1", place.port), timeout=DEADLINE) as sock:
        requests = [f"GET /list/{length} HTTP/1.1\r\nHost: x\r\n\r\n" for length in lengths]
        sock.sendall("".join(requests).encode() + b"GET /list/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        with sock.makefile("rb") as stream:
            got = stream.read()
    for length in (*lengths, 1):
        sent, _, got = got.partition(b"\r\n\r\n")
        if f"Content-Length: {length}\r\n".encode().lower() not in sent.lower() + b"\r\n":
            raise AssertionError(f"no answer with {length} bytes but {sent!r:.200}")
        same(got[:length], CONTENT[:length])
        got = got[length:]
    same(got, b"")


def http_1_0(place: Place) -> None:
    with socket.create_connection(("127.0.0.1", place.port), timeout=DEADLINE) as sock:
        sock.sendall(b"GET /generator/5000 HTTP/1.0\r\n\r\n")
        with sock.makefile("rb") as stream:
            sent, _, body = stream.read().partition(b"\r\n\r\n")
    same((b"chunked" in sent, body), (False, CONTENT[:5000]))


def a_bad_request(place: Place) -> None:
    with socket.create_connection(("127.0.0.1", place.port), timeout=DEADLINE) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        with sock.makefile("rb") as stream:
            same(stream.readline()[:13], b"HTTP/1.1 400 ")


def an_error(place: Place) -> None:
    same(place.ask("GET", "/error").status, 500)
    same(place.ask("GET", "/list/3").body, CONTENT[:3])


def an_error_after_the_head(place: Place) -> None:
    try:
        answer = place.ask("GET", "/late-error")
    except (http.client.IncompleteRead, http.client.BadStatusLine, ConnectionResetError):
        return
    raise AssertionError(f"the response looks complete: {answer.body!r}")


def eight_at_once(place: Place) -> None:
    wrong: list[object] = []

    def fetch() -> None:
        try:
            for _ in range(5):
                same(place.ask("GET", "/pause/3").body, CONTENT[:3])
        except Exception as error:  # reported by the main thread
            wrong.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(wrong, [])


ANY_SERVER = (
    *(hello, a_list, bare_bytes, an_empty_list, a_generator, a_file, a_file_wrapper, the_write_callable),
    *(a_post, a_large_post, a_chunked_post, a_body_by_lines, head, keep_alive, pipelining, http_1_0),
    *(a_bad_request, an_error, an_error_after_the_head, eight_at_once),
)


# Checks of the command line


class CommandLine:
    """`tailrace smoke.py --bind 127.0.0.1:0 --status 127.0.0.1:0` as a process, with a folder of static files; the
    ports are read from its log.
    """

    def __init__(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self.folder = tempfile.TemporaryDirectory(prefix="tailrace-smoke-")
        Path(self.folder.name, "smoke.css").write_bytes(CONTENT[:100000])
        command = [*TAILRACE, str(Path(__file__).resolve()), "--bind", "127.0.0.1:0", "--status", "127.0.0.1:0"]
        command += ["--static", f"/assets={self.folder.name}"]
        self.process = subprocess.Popen(command, stderr=self.log, stdin=subprocess.DEVNULL)
        until(lambda: "listening on http://127.0.0.1:" in self.text() or self.process.poll() is not None, "listening")
        if self.process.poll() is not None:
            raise AssertionError(f"ended with status {self.process.returncode}: {self.text()}")
        self.place = Place(int(self.text().partition("listening on http://127.0.0.1:")[2].split()[0]))

    def text(self) -> str:
        """The log so far."""
        return os.pread(self.log.fileno(), 1 << 20, 0).decode()

    def close(self) -> None:
        """Ends the process, however it is."""
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.folder.cleanup()

    def status(self) -> Place:
        """Where --status listens."""
        until(lambda: "status on http://127.0.0.1:" in self.text(), "the address of --status in the log")
        return Place(int(self.text().partition("status on http://127.0.0.1:")[2].split()[0]))

    def serves_a_static_file(self) -> None:
        answer = self.place.ask("GET", "/assets/smoke.css", headers={"Range": "bytes=7-"})
        same((answer.status, answer.headers["Content-Type"][:8]), (206, "text/css"))
        same(answer.body, CONTENT[7:100000])

    def has_metrics(self) -> None:
        status = self.status()
        answer = status.ask("GET", "/metrics")
        same((answer.status, answer.headers["Content-Type"][:10]), (200, "text/plain"))
        counted = re.compile(rb"^tailrace_requests_total [1-9]", re.MULTILINE)
        until(lambda: counted.search(status.ask("GET", "/metrics").body) is not None, "requests in the metrics")

    def has_the_live_page(self) -> None:
        answer = self.status().ask("GET", "/")
        same((answer.status, b"<style>\n:root" in answer.body, b'"use strict"' in answer.body), (200, True, True))

    def tells_of_the_error(self) -> None:
        until(lambda: "ValueError: the application has failed" in self.text(), "a traceback in the log")
        until(lambda: "ValueError: the generator has failed" in self.text(), "a traceback in the log")

    def stops_gracefully(self) -> None:
        with tempfile.TemporaryDirectory() as directory, contextlib.closing(self.place.connection()) as connection:
            path = os.path.join(directory, "go")
            connection.request("GET", f"/hold?{path}")
            response = connection.getresponse()
            same(response.read(6), b"begun,")
            self.process.send_signal(signal.SIGTERM)
            until(lambda: "SIGTERM: finishing the requests in flight" in self.text(), "SIGTERM in the log")
            same(self.process.poll(), None)
            Path(path).touch()
            same(response.read(), b"done")
            same(self.process.wait(DEADLINE), 0)
            refuses(self.place)


TAILRACE = [str(Path(sys.executable).with_name("tailrace"))]


def said(*arguments: str) -> tuple[int, str]:
    """Exit status and output of a command that ends by itself."""
    done = subprocess.run([*TAILRACE, *arguments], capture_output=True, text=True, timeout=DEADLINE)
    return done.returncode, done.stdout + done.stderr


def version() -> None:
    import tailrace

    status, text = said("--version")
    same((status, tailrace.__version__ in text), (0, True))


def a_wrong_name() -> None:
    status, text = said("no_such_module:app")
    same((status, "no_such_module" in text, "Traceback" in text), (3, True, False))


def config() -> None:
    status, text = said("config", "--threads", "7")
    same((status, "threads = 7" in text), (0, True))


# Checks of a server in this process


class Kept(logging.Handler):
    """Keeps what the server in this process says."""

    said = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Called on any thread."""
        Kept.said += self.format(record) + "\n"


def in_thread_tells_of_the_error() -> None:
    until(lambda: "ValueError: the application has failed" in Kept.said, "a traceback in the log")
    until(lambda: "ValueError: the generator has failed" in Kept.said, "a traceback in the log")


def in_thread_stops() -> None:
    import tailrace

    until(lambda: threading.active_count() == 1, "the end of the threads of the server before")
    with tailrace.serve_in_thread(app) as server:
        place = Place(server.address[1])
        same(place.ask("GET", "/list/3").body, CONTENT[:3])
    refuses(place)
    until(lambda: threading.active_count() == 1, "the end of its threads")


def main() -> int:
    """Runs all checks; the exit status."""
    faulthandler.dump_traceback_later(180, exit=True)
    import tailrace

    print(f"Tailrace {tailrace.__version__} at {Path(tailrace.__file__).parent}, Python {platform.python_version()}")
    failures = 0

    def check(where: str, function: Callable[..., None], *arguments: object) -> None:
        nonlocal failures
        try:
            function(*arguments)
        except Exception as error:
            failures += 1
            print(f"FAIL  {where}: {function.__name__}: {type(error).__name__}: {error}")
        else:
            print(f"ok    {where}: {function.__name__}")

    for function in (version, config, a_wrong_name):
        check("command line", function)
    # Else the tracebacks of the checks would be between their lines.
    logging.getLogger("tailrace").addHandler(Kept())
    with contextlib.closing(CommandLine()) as server:
        for function in ANY_SERVER:
            check("command line", function, server.place)
        check("command line", server.serves_a_static_file)
        check("command line", server.has_the_live_page)
        check("command line", server.has_metrics)
        check("command line", server.tells_of_the_error)
        check("command line", server.stops_gracefully)
    with tailrace.serve_in_thread(app) as server:
        for function in ANY_SERVER:
            check("serve_in_thread", function, Place(server.address[1]))
        check("serve_in_thread", in_thread_tells_of_the_error)
    check("serve_in_thread", in_thread_stops)
    print(f"{failures} checks failed" if failures else "all well")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
