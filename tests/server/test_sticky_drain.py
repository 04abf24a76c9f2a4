"""The end of the sessions of `tailrace.socketio.Manager` when their worker drains: handlers, requests, and the time."""

import contextlib
import errno
import re
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import engineio
import pytest
import socketio
from server.probes import eventually
from server.test_sticky import TRANSPORTS, WORKERS, Session, client, served

import tailrace.socketio
from tailrace.socketio import _TO_ARRIVE, _TO_POLL, Manager, _End

MODES = pytest.mark.parametrize("mode", [(), ("--gevent",)], ids=["threads", "gevent"])
SERVED_TWICE = """
import flask, flask_socketio, requests, tailrace, tailrace.socketio
from tailrace.socketio import Manager

tailrace.socketio._TO_POLL = 1
app = flask.Flask(__name__)
sessions = flask_socketio.SocketIO(app, async_mode="threading", client_manager=Manager(), ping_interval=2)

@sessions.on("disconnect")
def gone(reason):
    print("gone", flush=True)

handle = sessions.server.eio.handle_request
for _ in range(2):
    with tailrace.serve_in_thread(app, bind="127.0.0.1:0", graceful_timeout=60) as server:
        url = server.url + "/socket.io/?EIO=4&transport=polling"
        sid = requests.get(url).text.partition('"sid":"')[2].partition('"')[0]
        assert requests.post(url + "&sid=" + sid, "40").text == "OK"
        assert requests.get(url + "&sid=" + sid).text.startswith("40{")
        # Until then, the manager has noticed the server.
        assert requests.get(url + "&sid=" + sid).text == "2"
    assert sessions.server.eio.handle_request == handle
    assert not sessions.server.eio.sockets
    print("served", flush=True)
"""


@pytest.fixture
def notes(tmp_path):
    """The file in which the application notes what it does."""
    path = tmp_path / "notes"
    path.touch()
    return path


def noted(notes):
    return notes.read_text().splitlines()


@MODES
@TRANSPORTS
def test_handlers_run_to_their_end_and_disconnect_handlers_get_the_reason_of_the_guide(mode, transports, notes):
    options = {"graceful_timeout": 60, "environment": {"NOTES": str(notes), "TO_POLL": "2"}}
    with served(*mode, **options) as server, client(server.url, transports, reconnection=False) as (one, _):
        one.emit("work", 1.5)
        eventually(lambda: "begun" in noted(notes), "the handler")
        server.send_signal(signal.SIGHUP)
        eventually(lambda: server.log.count("has ended") == WORKERS, "the end of the workers before", 60)
        reason = "server disconnect" if transports == ["polling"] else "transport close"
        # The handler of "work" outlives the session.
        assert noted(notes) == ["begun", f"gone ({reason})", "done"]
    assert "did not finish" not in server.log


def test_handlers_are_not_waited_for_longer_than_the_graceful_time_out(notes):
    with served(graceful_timeout=5, environment={"NOTES": str(notes), "TO_POLL": "1"}) as server:
        session = Session(server.url)
        session.post('42["work",600]')
        eventually(lambda: "begun" in noted(notes), "the handler")
        server.send_signal(signal.SIGHUP)
        eventually(lambda: server.log.count("has ended") == WORKERS, "the end of the workers before", 60)
        assert server.log.count("waits for event handlers that run (1)") == 1


@MODES
def test_disconnect_handlers_do_not_wait_for_each_other_and_are_waited_for(mode, notes):
    count = 4
    options = {"graceful_timeout": 60, "environment": {"PING": "60", "NOTES": str(notes), "TO_POLL": "1"}}
    # All in one worker.
    with served(*mode, workers=1, **options) as server:
        for _ in range(count):
            Session(server.url, "&slow=5")
        server.send_signal(signal.SIGHUP)
        eventually(lambda: "has ended" in server.log, "the end of the worker before", 60)
        assert noted(notes) == ["gone (server disconnect)"] * count + ["over"] * count
    assert "did not finish" not in server.log


class Ending:
    """The end of the sessions of an Engine.IO server that is called by hand, at times of its own."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(tailrace.socketio, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.server = engineio.Server(async_mode="threading", monitor_clients=False, cors_allowed_origins="*")
        self.messages = []
        self.server.on("message", lambda sid, text: self.messages.append(text))
        self.running = set()
        self.sid = re.search('"sid":"([^"]+)"', self.ask("GET", sid="")[1])[1]
        # Instead of threads.
        self.server.start_background_task = lambda function, *args, **options: function(*args, **options)
        self.end = _End(self.server, self.running)
        self.server.handle_request = self.end._answer

    def ask(self, method, body=b"", sid=None):
        """The status, the body and the fields of an answer."""
        query = "EIO=4&transport=polling" + (f"&sid={self.sid}" if sid is None else "")
        environ = {"REQUEST_METHOD": method, "QUERY_STRING": query, "HTTP_ORIGIN": "http://other.example"}
        environ |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input": SimpleNamespace(read=lambda size: body)}
        begun = []
        answer = b"".join(self.server.handle_request(environ, lambda *found: begun.append(found)))
        ((status, fields),) = begun
        return status[:3], answer.decode(), dict(fields)

    def is_closed_at(self, now):
        self.now = now
        self.end._look()
        return self.server.sockets[self.sid].closed


def test_a_session_that_is_told_late_may_send_as_long_as_the_others_and_no_longer(monkeypatch):
    ending = Ending(monkeypatch)
    assert not ending.is_closed_at(0)
    ending.now = _TO_POLL - 0.1
    assert ending.ask("GET")[0] == "400"
    assert not ending.is_closed_at(_TO_POLL)
    ending.now = _TO_POLL - 0.2 + _TO_ARRIVE
    assert ending.ask("POST", b"4late")[0] == "400"
    assert ending.messages == ["late"]
    # What it sends tells it again, but that has an end.
    assert not ending.is_closed_at(_TO_POLL - 0.01 + _TO_ARRIVE)
    assert ending.is_closed_at(_TO_POLL + _TO_ARRIVE)
    assert ending.ask("POST", b"4too late")[0] == "400"
    assert ending.messages == ["late"]


def test_a_session_that_is_not_told_ends_without_that_time(monkeypatch):
    ending = Ending(monkeypatch)
    assert not ending.is_closed_at(_TO_POLL - 0.1)
    assert ending.is_closed_at(_TO_POLL)


def test_pages_of_other_origins_may_read_the_error(monkeypatch):
    ending = Ending(monkeypatch)
    ending.end._look()
    ending.now = 2.0
    for answer in (ending.ask("GET"), ending.ask("POST", b"4later")):
        assert answer[0] == "400"
        assert answer[2]["Access-Control-Allow-Origin"] == "http://other.example"


def test_other_versions_may_lack_what_is_not_documented(monkeypatch):
    Manager().set_server(SimpleNamespace(packet_class=socketio.packet.Packet))
    ending = Ending(monkeypatch)
    ending.end._look()
    ending.now = 2.0
    monkeypatch.delattr(engineio.base_server.BaseServer, "_cors_headers")
    assert ending.ask("GET")[::2] == ("400", {"Content-Type": "text/plain"})


def test_a_thread_that_cannot_start_is_started_later(monkeypatch):
    ending = Ending(monkeypatch)
    start = ending.server.start_background_task

    def refuse(*args, **options):
        raise RuntimeError("can't start new thread")

    ending.server.start_background_task = refuse
    assert not ending.is_closed_at(_TO_POLL)
    ending.server.start_background_task = start
    assert ending.is_closed_at(_TO_POLL)


def test_the_end_waits_for_what_runs(monkeypatch):
    ending = Ending(monkeypatch)
    handler = object()
    ending.running.add(handler)
    ending.now = _TO_POLL
    thread = threading.Thread(target=ending.end.run)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    ending.running.discard(handler)
    thread.join(30)
    assert not thread.is_alive()
    assert not ending.server.sockets


def test_a_manager_without_descriptors_tries_again_and_says_so_once(monkeypatch, caplog):
    found = iter([OSError(errno.EMFILE, "Too many open files")] * 3 + [None, ("socket", 7)])

    def follow(ended):
        assert ended == {6}
        answer = next(found)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(tailrace.socketio, "draining", SimpleNamespace(follow=follow))
    manager, pauses = Manager(), []
    manager.server = SimpleNamespace(sleep=pauses.append)
    with contextlib.suppress(StopIteration):
        assert manager._follow({6}) == ("socket", 7)
    assert len(pauses) == 4
    (message,) = caplog.messages
    assert "Too many open files" in message
    assert message.endswith("trying again")


def test_an_application_that_is_served_again_ends_its_sessions_again():
    done = subprocess.run(
        [sys.executable, "-c", SERVED_TWICE], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["gone", "served"] * 2, done.stderr
