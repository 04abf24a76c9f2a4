"""Tailrace behind nginx, HAProxy and Apache with the configurations of deploy/: the client gets what it would get from
Tailrace itself, byte for byte."""

import asyncio
import contextlib
import json
import os
import random
import runpy
import tempfile
from pathlib import Path

import httpx
import pytest
from frameworks.process import Process, await_that, connections
from harness import fronts
from harness.addresses import Address, free_address
from harness.fronts import Upstream, bind
from harness.server import Server
from harness.status import answer, is_ready
from harness.tools import missing, need_tool
from harness.wire import Client

SEEDS = Path(__file__).resolve().parents[2] / "examples" / "seeds.py"
# Fields of one connection, and those that every server writes itself.
OWN = {"connection", "keep-alive", "transfer-encoding", "date", "server", "via"}
ROWS = [
    (front, protocol, way)
    for front, protocol in (
        *(("nginx", "http"), ("haproxy", "http"), ("apache", "http")),
        *(("nginx", "uwsgi"), ("apache", "uwsgi"), ("haproxy", "proxy")),
    )
    for way in (("tcp",) if protocol == "proxy" else ("tcp", "unix"))
]
LARGE = 50_000_000


@pytest.fixture(scope="module")
def shapes():
    return [shape.path for shape in runpy.run_path(str(SEEDS))["SHAPES"]]


class Served:
    """The seeds on every kind of socket, and where their server answers checks."""

    def __init__(self, directory):
        self.listens = {
            ("http", "tcp"): free_address(),
            ("http", "unix"): Address(path=f"{directory}/http"),
            ("uwsgi", "tcp"): free_address(),
            ("uwsgi", "unix"): Address(path=f"{directory}/uwsgi"),
            ("proxy", "tcp"): free_address(),
        }
        self.status, self.agent = free_address(), free_address()
        binds = [text for (name, _), each in self.listens.items() for text in ("--bind", bind(name, each))]
        self.server = Server(
            *(str(SEEDS), *binds),
            status=self.status,
            haproxy_agent=self.agent,
            address=self.listens["http", "tcp"],
            trusted_proxies="unix,127.0.0.1",
        )

    def upstream(self, protocol, way):
        return Upstream(protocol, self.listens[protocol, way], self.status, self.agent)

    def is_idle(self):
        return answer(self.status, "/status.json")["requests"] == []


@pytest.fixture(scope="module")
def served():
    with tempfile.TemporaryDirectory(prefix="pst-") as directory:
        # Apache's children are another user.
        os.chmod(directory, 0o755)
        found = Served(directory)
        with found.server:
            await_that(lambda: is_ready(found.status))
            yield found
            lines = [line for line in found.server.log.splitlines() if "INFO" not in line]
            # That one is of a shape which is a mistake on purpose.
            assert [line for line in lines if "/deck/bytes: the application" not in line] == []


@pytest.fixture(scope="module", params=ROWS, ids="-".join)
def front(request, served):
    name, protocol, way = request.param
    if name == "apache" and not Path(fronts.MODULES, f"mod_proxy_{protocol}.so").exists():
        missing(f"{fronts.MODULES} has no mod_proxy_{protocol}.so")
    upstream, listen = served.upstream(protocol, way), free_address()
    made = getattr(fronts, name)(listen, upstream)
    command = (need_tool(made.executable), *made.arguments)
    with Process(*command, address=listen, files=made.files, statuses=made.statuses) as process:
        process.upstream, process.row = upstream, request.param
        yield process


@pytest.fixture
def client(front, browser):
    return browser(front)


@pytest.fixture
def direct(served, browser):
    return browser(served.server)


def told(response):
    """What must be the same, whoever has passed it on."""
    # Apache writes the names in Vary without spaces.
    fields = sorted(
        (name, value.replace(", ", ",") if name == "vary" else value)
        for name, value in response.headers.multi_items()
        if name not in OWN
    )
    return response.status_code, fields, response.content


@pytest.mark.nightly(gate=11)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_every_shape_is_what_tailrace_itself_sends(client, direct, shapes, method):
    for path in [*shapes, "/nothing"]:
        assert told(client.request(method, path)) == told(direct.request(method, path)), path


@pytest.mark.nightly(gate=11)
@pytest.mark.parametrize("length", [0, 1, 65_536, 1_000_001, LARGE])
def test_a_request_body_arrives_and_comes_back(client, direct, length):
    body = random.Random(length).randbytes(length)
    fields = {"Content-Type": "application/x-test"}
    through = client.post("/echo", content=body, headers=fields)
    assert told(through) == told(direct.post("/echo", content=body, headers=fields))
    assert through.content == body


@pytest.mark.parametrize("length", [0, 1, 1_000_001])
def test_a_chunked_body_arrives_and_comes_back(front, client, length):
    body = random.Random(length).randbytes(length)
    pieces = [body[start : start + 70_000] for start in range(0, length, 70_000)]
    response = client.post("/echo", content=iter(pieces))
    if front.row[:2] == ("apache", "uwsgi"):
        # mod_proxy_uwsgi passes on no body whose length it does not know.
        assert response.status_code == 411
    else:
        assert response.content == body


def test_the_client_keeps_its_connection(front):
    with Client(front.address) as client:
        for _ in range(50):
            response = client.ask(b"GET /page HTTP/1.1\r\nHost: test\r\n\r\n")
            assert (response.status, len(response.body)) == (200, 21_324)
            assert "close" not in response.connection


def test_connections_to_tailrace_are_used_again(front, served, client):
    if front.upstream.protocol != "http":
        pytest.skip("uwsgi has one request in each connection, and with PROXY each belongs to a client")
    path = front.upstream.address.path
    client.get("/pong")
    before = connections(served.server, path)
    assert before >= 1
    for _ in range(50):
        assert client.get("/pong").content == b"pong"
        # One more for a front that has not put the last one back yet, and one for its second node.
        assert connections(served.server, path) <= before + 2


def test_clients_that_leave_cost_nothing(front, served, client, direct):
    head = b"Host: test\r\n"
    for _ in range(20):
        with Client(front.address) as download:
            download.send(b"GET /deck/byte-by-byte HTTP/1.1\r\n" + head + b"\r\n")
            assert download.read(20_000)
        with Client(front.address) as upload:
            upload.send(b"POST /echo HTTP/1.1\r\n" + head + b"Content-Length: 1000000\r\n\r\n" + bytes(100_000))
    await_that(served.is_idle)
    assert told(client.get("/words")) == told(direct.get("/words"))


@pytest.mark.nightly(gate=4)
def test_a_thousand_requests_at_once(front, direct):
    page = direct.get("/page").content

    async def ask():
        reader, writer = await asyncio.open_connection(front.address.host, front.address.port)
        writer.write(b"GET /page HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        writer.close()
        return head.split(b"\r\n")[0], body

    async def all_at_once():
        return await asyncio.wait_for(asyncio.gather(*(ask() for _ in range(1000))), 60)

    answers = asyncio.run(all_at_once())
    assert {status for status, _ in answers} == {b"HTTP/1.1 200 OK"}
    assert {body for _, body in answers} == {page}


# Fields of the client that each front replaces or removes.
REPLACED = ("X-Forwarded-For", "X-Forwarded-Proto", "Forwarded")


class One:
    """A server with another application, and a front before it."""

    def __init__(self, stack, application, name, protocol, way="tcp", **more):
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pst-"))
        os.chmod(directory, 0o755)
        at = free_address() if way == "tcp" else Address(path=f"{directory}/s")
        first, listen, status, agent = (free_address() for _ in range(4))
        binds = ("--bind", first.bind, "--bind", bind(protocol, at))
        options = {"status": status, "haproxy_agent": agent, "trusted_proxies": "unix,127.0.0.1"}
        self.server = stack.enter_context(Server(application, *binds, address=first, **options))
        await_that(lambda: is_ready(status))
        made = getattr(fronts, name)(listen, Upstream(protocol, at, status, agent), **more)
        command = (need_tool(made.executable), *made.arguments)
        self.front = stack.enter_context(Process(*command, address=listen, files=made.files, statuses=made.statuses))


@pytest.mark.parametrize(("name", "protocol"), dict.fromkeys((name, protocol) for name, protocol, _ in ROWS))
def test_the_application_sees_who_asks_for_what(name, protocol):
    with contextlib.ExitStack() as stack:
        one = One(stack, "fw_delivery:app", name, protocol)
        lies = {
            "X-Forwarded-For": "6.6.6.6",
            "X-Forwarded-Proto": "gopher",
            "X-Forwarded-Host": "evil.example",
            "X-Forwarded-Port": "666",
            "X-Forwarded-Prefix": "/evil",
            "Forwarded": "for=6.6.6.6",
        }
        # An address of the client's own, which is not that of the connection between front and server.
        transport = httpx.HTTPTransport(local_address="127.0.0.9", trust_env=False)
        with httpx.Client(base_url=one.front.url, transport=transport, timeout=20.0, trust_env=False) as client:
            client.get("/", headers={name: lie for name, lie in lies.items() if name in REPLACED})
            # What the front itself sends is believed, or nobody is told to trust the client.
            assert "not trusted" not in one.server.log
            seen = client.get("/a%20b/%C3%A9?x=1%202", headers={"Host": "shop.example", **lies}).json()
        assert (seen["PATH_INFO"], seen["QUERY_STRING"]) == ("/a b/\xc3\xa9", "x=1%202")
        assert (seen["HTTP_HOST"], seen["wsgi.url_scheme"]) == ("shop.example", "http")
        assert seen["REMOTE_ADDR"] == "127.0.0.9"
        assert not [lie for lie in ("6.6.6.6", "gopher", "evil") if lie in str(seen)]
        # The port of the client may contain it.
        assert "666" not in seen.values()


@pytest.mark.parametrize(("name", "protocol"), dict.fromkeys((name, protocol) for name, protocol, _ in ROWS))
def test_the_host_is_the_one_by_which_the_front_chooses_a_site(name, protocol):
    with contextlib.ExitStack() as stack:
        front = One(stack, "fw_delivery:app", name, protocol).front
        client = stack.enter_context(Client(front.address))
        # RFC 9112 section 3.2.2: the target counts, and not the field.
        answer = client.ask(b"GET http://shop.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        assert answer.status in (200, 400)
        if answer.status == 200:
            assert json.loads(answer.body)["HTTP_HOST"] == "shop.example"


@pytest.mark.parametrize("way", ["tcp", "unix"])
@pytest.mark.parametrize("protocol", ["http", "uwsgi"])
def test_nginx_sends_a_file_that_the_application_names(tmp_path, browser, protocol, way):
    content = random.Random(way).randbytes(300_000)
    (tmp_path / "a.bin").write_bytes(content)
    with contextlib.ExitStack() as stack:
        client = browser(One(stack, "fw_accel:app", "nginx", protocol, way, files=f"{tmp_path}/").front)
        assert client.get("/a.bin").content == content
        assert client.get("/a.bin", headers={"Range": "bytes=5-9"}).content == content[5:10]
        assert client.get("/none").status_code == 404
        # A client cannot ask for it by that name: the application is not asked either.
        assert client.get("/protected/a.bin").status_code == 404
