"""`--early-hints`: `wsgi.early_hints` for an application written for gunicorn, and what proxies make of it."""

import json
import socket
import sys

import pytest
from frameworks.process import Process, nginx
from harness.addresses import free_address
from harness.peers import PEER
from harness.server import APPS, GEVENT, Server
from harness.tools import need_tool
from harness.wire import Client
from server.probes import request

MODES = [
    pytest.param([], id="threads"),
    pytest.param(["--debug"], id="debug", marks=pytest.mark.skipif(GEVENT, reason="threads")),
]
LINK = ("Link", "</style.css>; rel=preload; as=style")

HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend all
    bind %(listen)s
    default_backend nodes
backend nodes
    server one %(server)s
"""
NGINX = """
server {
    listen %(listen)s;
    location / {
        proxy_http_version 1.0;
        proxy_pass http://%(server)s;
    }
}
"""


def server(*arguments, **options):
    return Server("early_hints:app", "--early-hints", *arguments, **options)


@pytest.fixture(scope="module")
def serving():
    with server() as serving:
        yield serving


def ask(client, target="/", *lines, method="GET", version="1.1"):
    client.send("\r\n".join([f"{method} {target} HTTP/{version}", "Host: test", *lines, "", ""]).encode())
    return client.response(method, version)


def hints(response):
    assert all((each.version, each.status, each.reason) == ("1.1", 103, "Early Hints") for each in response.interim)
    return [each.fields for each in response.interim]


@pytest.mark.parametrize("arguments", MODES)
def test_hints_come_before_the_response_and_harm_no_later_one(arguments):
    with server(*arguments) as serving, serving.client() as client:
        for number in (1, 3, 0):
            answer = ask(client, f"/?hints={number}")
            assert hints(answer) == [[LINK, ("X-Number", str(each))] for each in range(number)]
            assert (answer.status, answer["Link"], json.loads(answer.body)["has"]) == (200, LINK[1], True)
        answer = ask(client, method="HEAD")
        assert (len(answer.interim), answer.status, answer.body) == (1, 200, b"")


def test_a_hint_is_sent_at_once_and_not_with_the_response(tmp_path):
    (tmp_path / "waiting.py").write_text(WAITING)
    with Server("waiting:app", "--early-hints", directory=tmp_path) as serving, serving.client() as client:
        client.send(request("/"))
        assert client.head().status == 103
        # The application waits for this.
        (tmp_path / "go").touch()
        assert client.response().body == b"gone"


WAITING = """
import os
import time

def app(environ, start_response):
    environ["wsgi.early_hints"]([("X-A", "b")])
    while not os.path.exists("go"):
        time.sleep(0.01)
    start_response("200 OK", [])
    return [b"gone"]
"""


def test_a_late_hint_and_one_of_a_forked_process_raise_and_harm_no_other_response(tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    with Server("late:app", "--early-hints", directory=tmp_path) as serving, serving.client() as client:
        for number in range(2):
            answer = ask(client, "/keep")
            assert (hints(answer), answer.body) == ([[("X-A", "thread")]], b"")
            answer = ask(client, "/late")
            assert (answer.interim, answer.body[:13]) == ([], b"RuntimeError:"), number
            assert b"after the response had ended" in answer.body
        answer = ask(client, "/fork")
        assert answer.interim == []
        assert b"in a process that the application has forked" in answer.body


LATE = """
import os
import threading

kept = []

def call(hint, *headers):
    try:
        hint(list(headers))
    except Exception as error:
        return f"{type(error).__name__}: {error}".encode()
    return b""

def app(environ, start_response):
    hint = environ["wsgi.early_hints"]
    said = b""
    if environ["PATH_INFO"] == "/keep":
        kept.append(hint)
        thread = threading.Thread(target=call, args=(hint, ("X-A", "thread")))
        thread.start()
        thread.join()
    elif environ["PATH_INFO"] == "/late":
        said = call(kept[-1], ("X-A", "late"))
    else:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, call(hint, ("X-A", "child")))
            os._exit(0)
        os.waitpid(child, 0)
        # Not to the end: gevent closes later than it is told.
        said = os.read(reader, 1000)
        os.close(reader)
        os.close(writer)
    start_response("200 OK", [("Content-Length", str(len(said)))])
    return [said]
"""


def test_without_the_option_there_is_no_such_key():
    with Server("early_hints:app") as serving, serving.client() as client:
        answer = ask(client)
        assert (answer.interim, json.loads(answer.body)["has"]) == ([], False)


@pytest.mark.parametrize(
    ("target", "version", "body"),
    [
        ("/", "1.0", b'{"has": true, "raised": ""}'),
        ("/?write=1&hints=0", "1.1", b"begun "),
        ("/?hints=0&bad=7", "1.1", b""),
    ],
    ids=["HTTP/1.0", "after the head", "fields of the server"],
)
def test_what_is_no_hint_for_this_client_is_not_sent(serving, target, version, body):
    with serving.client() as client:
        answer = ask(client, target, version=version)
        assert hints(answer) == ([[("X-Kept", "1")]] if "bad" in target else [])
        assert answer.body.startswith(body)
        assert version == "1.0" or ask(client).status == 200


@pytest.mark.parametrize(
    ("number", "raised"),
    [
        (0, 'ValueError: header "X-A" has a control character'),
        (1, 'ValueError: header name "X A" is not a token'),
        (2, 'TypeError: the value of header "X-A" must be str, not int'),
        (3, "TypeError: headers must be a list of (name, value) tuples, not str"),
        (4, 'UnicodeError: header "X-A" has a character beyond latin-1'),
        (5, "TypeError: a header must be a tuple of name and value, but one has 3 items"),
        (6, "TypeError: headers must be a list of (name, value) tuples, not NoneType"),
    ],
)
def test_a_hint_that_is_no_list_of_headers_raises_and_is_not_sent(serving, number, raised):
    with serving.client() as client:
        answer = ask(client, f"/?hints=0&bad={number}")
        assert (answer.interim, answer.status) == ([], 200)
        assert json.loads(answer.body)["raised"].startswith(raised)


def test_a_client_that_reads_nothing_is_sent_a_bounded_amount(serving):
    with serving.client() as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # 100 MB, of which the kernel takes some.
        answer = client.ask(request("/?hints=5000&size=20000"))
        assert 0 < len(answer.interim) < 2000
        numbers = [int(each["X-Number"].rstrip("x")) for each in answer.interim]
        assert numbers == sorted(numbers)
        assert answer.status == 200


def test_a_client_that_waits_to_send_its_body_gets_both_kinds_of_interim_responses():
    with server("--stream-body") as serving, serving.client() as client:
        client.send(b"POST /?read=1 HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert [client.head().status for _ in range(2)] == [103, 100]
        answer = client.ask(b"abcd")
        assert (hints(answer), answer.status) == ([[("X-Read", "4")]], 200)


def test_hints_are_no_responses_in_the_log(tmp_path):
    log = tmp_path / "log"
    with server(access_log=log, access_log_format="{status} {bytes}") as serving, serving.client() as client:
        size = len(ask(client, "/?hints=3").body)
    assert log.read_text() == f"200 {size}\n"


def through(front, listen):
    """The statuses of what a client of HTTP/1.1 gets for two requests on one connection, through a proxy."""
    with front, Client(listen, 30.0) as client:
        answers = [ask(client, f"/{number}") for number in range(2)]
        return [[each.status for each in (*answer.interim, answer)] for answer in answers]


def test_haproxy_passes_hints_on(serving):
    listen = free_address()
    text = HAPROXY % {"listen": listen.bind, "server": serving.address.bind}
    command = (need_tool("haproxy"), "-db", "-f", "{directory}/haproxy.cfg")
    haproxy = Process(*command, address=listen, files={"haproxy.cfg": text}, statuses=(0, 143, -15))
    assert through(haproxy, listen) == [[103, 200], [103, 200]]


def test_nginx_asks_for_none_by_default(serving):
    listen = free_address()
    site = NGINX % {"listen": listen.bind, "server": serving.address.bind}
    assert through(nginx(listen, site), listen) == [[200], [200]]


@pytest.mark.skipif(bool(PEER), reason="starts gunicorn itself")
def test_the_same_application_gets_the_same_from_gunicorn(serving):
    """All but the fields of the final response, which differ anyway."""
    address = free_address()
    command = [sys.executable, "-m", "gunicorn", "-k", "gthread", "-b", address.bind, "early_hints:app"]

    def answers(client):
        found = [ask(client, "/?hints=2"), ask(client, "/?hints=0&write=1")]
        return [(hints(each), each.status, each.body) for each in found]

    with Process(*command, address=address, cwd=APPS, statuses=(0,)), Client(address, 30.0) as client:
        theirs = answers(client)
    with serving.client() as client:
        assert answers(client) == theirs
