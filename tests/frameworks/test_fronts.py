"""Tailrace behind nginx, HAProxy and Apache with the configurations of deploy/: the client gets what it would get from
Tailrace itself, byte for byte."""

import asyncio
import os
import random
import runpy
import tempfile
from pathlib import Path

import pytest
from frameworks.process import Process, await_that, both, connections
from harness import fronts
from harness.addresses import Address, free_address
from harness.fronts import Upstream
from harness.server import Server
from harness.status import answer
from harness.tools import missing, need_tool
from harness.wire import Client

SEEDS = Path(__file__).resolve().parents[2] / "examples" / "seeds.py"
# Fields of one connection, and those that every server writes itself.
OWN = {"connection", "keep-alive", "transfer-encoding", "date", "server", "via"}
ROWS = [
    (front, protocol, way)
    for front, protocol in (("nginx", "http"), ("haproxy", "http"), ("apache", "http"))
    for way in ("tcp", "unix")
]
LARGE = 50_000_000


@pytest.fixture(scope="module")
def shapes():
    return [shape.path for shape in runpy.run_path(str(SEEDS))["SHAPES"]]


class Served:
    """The seeds on every kind of socket, and where their server answers checks."""

    def __init__(self, directory):
        self.http = {"tcp": free_address(), "unix": Address(path=f"{directory}/http")}
        self.status, self.agent = free_address(), free_address()
        binds = [text for address in self.http.values() for text in ("--bind", address.bind)]
        self.server = Server(
            *(str(SEEDS), *binds, "--socket-mode", "666", "--status", self.status.bind, "--agent", self.agent.bind),
            address=self.http["tcp"],
        )

    def upstream(self, protocol, way):
        return Upstream(protocol, self.http[way], self.status, self.agent)

    def is_idle(self):
        return answer(self.status, "/status.json")["requests"] == []


@pytest.fixture(scope="module")
def served():
    with tempfile.TemporaryDirectory(prefix="pst-") as directory:
        # Apache's children are another user.
        os.chmod(directory, 0o755)
        found = Served(directory)
        with found.server:
            yield found
            lines = [line for line in found.server.log.splitlines() if "INFO" not in line]
            # That one is of a shape which is a mistake on purpose.
            assert [line for line in lines if "GET /deck/bytes: the application" not in line] == []


@pytest.fixture(scope="module", params=ROWS, ids="-".join)
def front(request, served):
    name, protocol, way = request.param
    if name == "apache" and not Path(fronts.MODULES, f"mod_proxy_{protocol}.so").exists():
        missing(f"{fronts.MODULES} has no mod_proxy_{protocol}.so")
    upstream, listen = served.upstream(protocol, way), free_address()
    made = getattr(fronts, name)(listen, upstream)
    command = (need_tool(made.executable), *made.arguments)
    with Process(*command, address=listen, files=made.files, statuses=made.statuses) as process:
        process.upstream = upstream
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


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_every_shape_is_what_tailrace_itself_sends(client, direct, shapes, method):
    for path in [*shapes, "/nothing"]:
        assert told(client.request(method, path)) == told(direct.request(method, path)), path


@pytest.mark.parametrize("length", [0, 1, 65_536, 1_000_001, LARGE])
def test_a_request_body_arrives_and_comes_back(client, direct, length):
    body = random.Random(length).randbytes(length)
    fields = {"Content-Type": "application/x-test"}
    through = client.post("/echo", content=body, headers=fields)
    assert told(through) == told(direct.post("/echo", content=body, headers=fields))
    assert through.content == body


@pytest.mark.parametrize("length", [0, 1, 1_000_001])
def test_a_chunked_body_arrives_and_comes_back(client, length):
    body = random.Random(length).randbytes(length)
    pieces = [body[start : start + 70_000] for start in range(0, length, 70_000)]
    assert client.post("/echo", content=iter(pieces)).content == body


def test_the_client_keeps_its_connection(front):
    with Client(front.address) as client:
        for _ in range(50):
            client.send(b"GET /page HTTP/1.1\r\nHost: test\r\n\r\n")
            response = client.response()
            assert (response.status, len(response.body)) == (200, 21_324)
            assert "close" not in response.connection


def test_connections_to_tailrace_are_used_again(front, served, client):
    if front.upstream.protocol != "http":
        pytest.skip("uwsgi has one request in each connection")
    path = front.upstream.address.path
    client.get("/pong")
    before = connections(served.server, path)
    assert before >= 1
    for _ in range(50):
        assert client.get("/pong").content == b"pong"
        assert connections(served.server, path) <= before


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


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_nginx_sends_a_file_that_the_application_names(tmp_path, browser, way):
    content = random.Random(way).randbytes(300_000)
    with tempfile.TemporaryDirectory(prefix="pst-") as directory:
        Path(directory, "a.bin").write_bytes(content)
        with both(f"{directory}/s", "fw_accel:app") as server:
            address = server.address if way == "tcp" else Address(path=f"{directory}/s")
            listen, upstream = free_address(), Upstream("http", address, address, address)
            made = fronts.nginx(listen, upstream, f"{directory}/")
            with Process(need_tool("nginx"), *made.arguments, address=listen, files=made.files) as process:
                client = browser(process)
                assert client.get("/a.bin").content == content
                assert client.get("/a.bin", headers={"Range": "bytes=5-9"}).content == content[5:10]
                assert client.get("/none").status_code == 404
                # A client cannot ask for it by that name: the application is not asked either.
                assert client.get("/protected/a.bin").status_code == 404
