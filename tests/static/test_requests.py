"""Requests for static files, in every form that a client may send them."""

import json
import random
import threading

import pytest
from harness.addresses import Address
from harness.waits import until_it_wakes
from server.probes import eventually
from static.site import LARGE, ask, fields_of, overlaying, pattern, request, serving, tree

FILES = {"a.css": b"a { }", "empty.txt": b"", "medium.js": pattern(20_000, 1), "large.bin": pattern(LARGE, 2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tree(tmp_path_factory.mktemp("site"), {**FILES, "a \u00fc.txt": b"decoded"})


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder) as started:
        yield started


def test_a_file_is_served_with_all_that_describes_it(server):
    with server.client() as client:
        for _ in range(3):
            for name, content in FILES.items():
                got = ask(client, f"/assets/{name}")
                assert (got.status, got.body, got.framing) == (200, content, "length")
                assert set(fields_of(got)) == {
                    "content-type", "content-length", "etag", "last-modified", "accept-ranges", "server",
                    "x-content-type-options",
                }  # fmt: skip
                assert "date" in got


def test_head_has_the_fields_of_get_and_no_body(server):
    with server.client() as client:
        for name in FILES:
            assert fields_of(ask(client, f"/assets/{name}", method="HEAD")) == fields_of(ask(client, f"/assets/{name}"))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "PROPFIND"])
def test_other_methods_are_405_with_allow(server, method):
    with server.client() as client:
        for target in ("/assets/a.css", "/assets/missing", "/assets", "/assets/"):
            got = ask(client, target, method=method)
            assert (got.status, got["Allow"]) == (405, "GET, HEAD")
        assert ask(client, "/assets/a.css").status == 200


def test_other_methods_reach_the_application_behind_an_overlay(folder):
    with overlaying(folder) as server, server.client() as client:
        assert ask(client, "/a.css").body == FILES["a.css"]
        for method in ("POST", "DELETE", "OPTIONS", "PROPFIND"):
            seen = json.loads(client.ask(request("/a.css", "Content-Length: 4", method=method) + b"body", method).body)
            assert (seen["REQUEST_METHOD"], seen["PATH_INFO"], seen["body"]) == (method, "/a.css", "body")


def test_a_path_may_be_encoded_and_its_query_does_not_matter(server):
    with server.client() as client:
        for target in (
            "/assets/%61.css",
            "/assets/%61%2e%63%73%73",
            "/assets/a.css?../../etc/passwd",
            "/assets/a.css?a=/b%2f..%00",
        ):
            assert ask(client, target).body == FILES["a.css"]
        assert ask(client, "/assets/a%20%C3%BC.txt").body == b"decoded"


def test_the_connection_is_kept_or_closed_as_asked(server):
    with server.client() as client:
        got = client.ask(request("/assets/large.bin", "Connection: close"))
        assert (got.body, got.connection) == (FILES["large.bin"], {"close"})
        client.at_end(clean=True)


@pytest.mark.parametrize("name", FILES)
def test_http_1_0(server, name):
    with server.client() as client:
        client.send(request(f"/assets/{name}", "Connection: keep-alive", version="1.0"))
        assert client.response(version="1.0").body == FILES[name]
        got = client.ask(request(f"/assets/{name}", version="1.0"), version="1.0")
        assert (got.body, got.framing) == (FILES[name], "length")
        client.at_end(clean=True)


@pytest.mark.parametrize("arguments", [[], ["--stream-body"]], ids=["whole", "streamed"])
def test_a_request_with_a_body_is_answered_and_the_body_dropped(folder, arguments):
    with serving(folder, *arguments) as server, server.client() as client:
        for name, content in FILES.items():
            assert client.ask(request(f"/assets/{name}", "Content-Length: 5") + b"hello").body == content
            client.send(request(f"/assets/{name}", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n")
            assert client.response().body == content
        client.send(request("/assets/a.css", "Content-Length: 200000", method="POST") + bytes(200_000))
        assert client.response("POST").status == 405
        if "connection" not in client.buffer.decode().lower():
            with server.client() as other:
                assert ask(other, "/assets/a.css").status == 200


@pytest.mark.parametrize("arguments", [[], ["--stream-body"]], ids=["whole", "streamed"])
def test_expect_continue(folder, arguments):
    with serving(folder, *arguments) as server:
        for method, status in (("GET", 200), ("POST", 405)):
            with server.client() as client:
                client.send(request("/assets/a.css", "Expect: 100-continue", "Content-Length: 5", method=method))
                first = client.head()
                if first.status == 100:
                    first = client.ask(b"hello", method)
                else:
                    client.body_of(first, method)
                assert first.status == status


def test_absolute_and_asterisk_targets(server):
    with server.client() as client:
        assert ask(client, "http://test/assets/a.css").body == FILES["a.css"]
        assert ask(client, "http://test/assets/a.css?x=1").body == FILES["a.css"]
        assert ask(client, "http://test/other").status == 200
        assert ask(client, "*", method="OPTIONS").status != 405


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("arguments", [[], ["--stream-body"], ["--debug"], ["--gevent"]], ids=lambda value: str(value))
def test_pipelined_requests_are_answered_in_order(folder, arguments):
    chance = random.Random(1)
    targets = [
        chance.choice(["/assets/a.css", "/assets/medium.js", "/assets/empty.txt", "/assets/no", f"/app/{number}"])
        for number in range(3_000)
    ]
    with serving(folder, *arguments) as server, server.client(30) as client:
        client.sock.setblocking(True)
        data = b"".join(request(target) for target in targets)
        sender = threading.Thread(target=client.sock.sendall, args=(data,))
        sender.start()
        for target in targets:
            got = client.response()
            if target.startswith("/app"):
                assert json.loads(got.body)["PATH_INFO"] == target
            elif target == "/assets/no":
                assert got.status == 404
            else:
                assert got.body == FILES[target.removeprefix("/assets/")]
        sender.join()


def test_files_are_served_over_a_unix_socket(folder, tmp_path):
    with serving(folder, address=Address(path=str(tmp_path / "s"))) as server, server.client() as client:
        for name, content in FILES.items():
            assert ask(client, f"/assets/{name}").body == content


def test_files_are_served_by_each_of_several_workers(folder):
    with serving(folder, workers=2) as server:
        server.workers(2)
        for _ in range(40):
            assert server.get("/assets/large.bin").body == FILES["large.bin"]


def test_an_idle_server_sleeps_though_it_has_files(folder):
    with serving(folder) as server:
        for name, content in FILES.items():
            assert server.get(f"/assets/{name}").body == content
        eventually(lambda: "tailrace-disk" not in server.threads(), "the end of the disk threads")
        eventually(lambda: until_it_wakes(server.pid) >= 1, "a server that sleeps")


def test_a_response_counts_as_no_request_of_the_application(folder):
    with serving(folder, max_requests=3) as server:
        worker = server.pid
        for _ in range(30):
            assert server.get("/assets/a.css").status == 200
        assert server.workers() == [worker]
