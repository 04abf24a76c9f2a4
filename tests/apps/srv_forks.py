"""An application that forks: the child leaves it in whatever way it is asked to, and the parent tells how it ended.

With `?wait=no` the parent does not wait for its child, and answers its number.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs

LIMIT = 20.0


def answer(start_response, value):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def reaped(pid):
    """How it ended. By waitid, which stays the system's own with gevent, whose waitpid may miss a quick child."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED)
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def said_in(reader):
    """What has been written into a pipe. With gevent our own writing end is closed later."""
    os.set_blocking(reader, False)
    try:
        return os.read(reader, 65536).decode()
    except BlockingIOError:
        return ""
    finally:
        os.close(reader)


class Iterable:
    """A response whose child leaves at a certain step."""

    def __init__(self, forks_at, start_response):
        self.forks_at, self.start_response = forks_at, start_response
        self.child = None

    def step(self, name):
        if name == self.forks_at:
            self.child = os.fork()
            return self.child == 0
        return False

    def __iter__(self):
        self.start_response("200 OK", [("Content-Type", "application/json")])
        yield b"["
        if self.step("generator"):
            yield b"of the child"
            yield b"of the child"
        if self.step("generator-end"):
            return
        if self.step("generator-raise"):
            raise RuntimeError("in the child's generator")
        if self.child:
            yield str(reaped(self.child)).encode()
        yield b"]"

    def close(self):
        if self.step("close"):
            return
        if self.child and self.forks_at == "close":
            CLOSED.append(reaped(self.child))


CLOSED = []


def tries(environ, start_response):
    """In a child: what of the server's functions raises, by name."""
    write = start_response("200 OK", [])
    raised = {}
    for name, work in {
        "write": lambda: write(b"x" * 100),
        "delivery": environ["tailrace.delivery"],
        "client_disconnected": environ["tailrace.client_disconnected"],
        "set_deadline": lambda: environ["tailrace.set_deadline"](1),
        "input": lambda: environ["wsgi.input"].read(1),
    }.items():
        try:
            raised[name] = repr(work())
        except RuntimeError as error:
            raised[name] = f"RuntimeError: {error}"
    return raised


def app(environ, start_response):
    query = {key: values[-1] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
    path = environ["PATH_INFO"].strip("/")
    if path == "":
        return answer(start_response, b"pong")
    if path == "closed":
        return answer(start_response, CLOSED)
    if path in ("generator", "generator-end", "generator-raise", "close"):
        return Iterable(path, start_response)
    if path == "alive":
        return answer(start_response, Path(f"/proc/{query['pid']}").exists())
    if path == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=sys.exit, args=(7,))
        child.start()
        child.join(LIMIT)
        return answer(start_response, child.exitcode)
    if path == "subprocess":
        ended = subprocess.run(
            [sys.executable, "-c", "raise SystemExit(7)"], check=False, preexec_fn=lambda: os.umask(0o22)
        )
        return answer(start_response, ended.returncode)
    if path == "upload":
        return upload(environ, start_response)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        return in_child(path, query, environ, start_response, writer)
    os.close(writer)
    if query.get("wait") == "no":
        os.close(reader)
        return answer(start_response, pid)
    status = reaped(pid)
    return answer(start_response, {"status": status, "said": said_in(reader)})


def in_child(path, query, environ, start_response, writer):
    if path == "exit":
        sys.exit(json.loads(query["code"]) if "code" in query else None)
    if path == "raise":
        raise RuntimeError("in the child")
    if path == "return":
        print("the child's last words")
        return answer(start_response, b"of the child")
    if path == "interrupt":
        raise KeyboardInterrupt
    if path == "twice":
        if os.fork() == 0:
            os.setsid()
            os.write(writer, b"grandchild")
            sys.exit(3)
        os._exit(4)
    if path == "tries":
        os.write(writer, json.dumps(tries(environ, start_response)).encode())
        os._exit(0)
    if path == "descriptors":
        os.close(writer)
        time.sleep(LIMIT)
        os._exit(0)
    if path == "signal":
        handlers = [repr(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGQUIT)]
        os.write(writer, json.dumps(handlers).encode())
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LIMIT)
        os._exit(0)
    if path == "server":
        import http.client

        import tailrace

        with tailrace.serve_in_thread(lambda e, s: answer(s, b"of a server of its own")) as server:
            connection = http.client.HTTPConnection(*server.address, timeout=LIMIT)
            connection.request("GET", "/")
            os.write(writer, connection.getresponse().read())
        return answer(start_response, b"")
    if path == "thread":
        worker = threading.Thread(target=os.write, args=(writer, b"a thread"))
        worker.start()
        worker.join()
        return answer(start_response, b"")
    raise AssertionError(path)


def upload(environ, start_response):
    """Parent and child both read the body."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(writer, str(len(environ["wsgi.input"].read())).encode())
        os._exit(0)
    os.close(writer)
    reaped(pid)
    return answer(start_response, {"child": said_in(reader), "parent": len(environ["wsgi.input"].read())})
