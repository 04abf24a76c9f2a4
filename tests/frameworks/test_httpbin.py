"""`tailrace httpbin:app`, with requests for each of its features."""

import base64
import hashlib
import json

import httpx
import pytest
from harness.server import Server
from harness.tools import need_module

need_module("httpbin")


@pytest.fixture(scope="module")
def server():
    with Server("httpbin:app") as server:
        yield server


@pytest.fixture
def client(server, browser):
    return browser(server)


def test_get_shows_what_was_sent(client, server):
    answer = client.get("/get", params={"q": "a b&c=ü"}, headers={"X-Two": "1", "Accept": "application/json"})
    seen = answer.json()
    assert seen["args"] == {"q": "a b&c=ü"}
    assert seen["headers"]["X-Two"] == "1"
    assert seen["headers"]["Host"] == server.url.removeprefix("http://")
    assert seen["origin"] == "127.0.0.1"
    assert seen["url"] == f"{server.url}/get?q=a+b%26c%3Dü"


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_json_form_and_files(client, method):
    def send(**body):
        return client.request(method.upper(), f"/{method}", **body).json()

    assert send(json={"a": [1, "ß"]})["json"] == {"a": [1, "ß"]}
    assert send(data={"k": ["v", "w"], "e": ""})["form"] == {"k": ["v", "w"], "e": ""}
    seen = send(files={"f": ("n.txt", b"text \xc3\xa9")}, data={"k": "v"})
    assert (seen["files"], seen["form"]) == ({"f": "text é"}, {"k": "v"})
    binary = bytes(range(256))
    assert base64.b64decode(send(content=binary)["data"].partition("base64,")[2]) == binary


def test_an_upload_in_chunks(client):
    answer = client.post("/post", content=(b"%d;" % number for number in range(5000)))
    assert answer.json()["data"] == "".join(f"{number};" for number in range(5000))


def test_an_upload_that_does_not_fit_in_memory(client):
    text = "".join(f"{number:015d}\n" for number in range(200_000))
    assert client.post("/post", content=text.encode()).json()["data"] == text


@pytest.mark.parametrize("code", [200, 201, 202, 204, 205, 304, 400, 404, 410, 418, 429, 500, 503, 507])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_after_a_response_of_any_status_the_connection_can_be_used(client, method, code):
    answer = client.request(method, f"/status/{code}")
    assert answer.status_code == code
    if code in (204, 304):
        assert answer.content == b""
        assert "transfer-encoding" not in answer.headers
    assert (b"teapot" in answer.content) is (code == 418)
    assert client.get("/user-agent", headers={"User-Agent": "seeds"}).json() == {"user-agent": "seeds"}


@pytest.mark.parametrize("kind", ["redirect", "relative-redirect", "absolute-redirect"])
def test_redirects_are_followed_to_the_end(client, server, kind):
    answer = client.get(f"/{kind}/4", follow_redirects=True)
    assert [step.status_code for step in answer.history] == [302] * 4
    assert (answer.status_code, answer.json()["url"]) == (200, f"{server.url}/get")


def test_a_redirect_that_keeps_method_and_body(client):
    answer = client.post("/redirect-to?url=/post&status_code=307", content=b"kept", follow_redirects=True)
    assert (answer.history[0].status_code, answer.json()["data"]) == (307, "kept")


def test_a_stream_of_json_lines(client):
    with client.stream("GET", "/stream/100") as answer:
        assert answer.headers["transfer-encoding"] == "chunked"
        assert [json.loads(line)["id"] for line in answer.iter_lines()] == list(range(100))


def test_streamed_bytes_are_the_same_as_whole_ones(client):
    whole = client.get("/bytes/100000", params={"seed": 7})
    pieces = client.get("/stream-bytes/100000", params={"seed": 7, "chunk_size": 313})
    assert (whole.headers["content-length"], pieces.headers["transfer-encoding"]) == ("100000", "chunked")
    assert hashlib.sha256(pieces.content).digest() == hashlib.sha256(whole.content).digest()
    assert len(whole.content) == 100_000


def test_a_drip_arrives_drop_by_drop(client):
    with client.stream("GET", "/drip?numbytes=5&duration=0.5&code=200") as answer:
        assert answer.headers["content-length"] == "5"
        drops = list(answer.iter_raw())
    assert b"".join(drops) == b"*****"
    # The application rests 0.1 s between two drops: a server that gathered them would give one piece.
    assert len(drops) > 1


def test_a_range(client):
    answer = client.get("/range/1000", headers={"Range": "bytes=100-149"})
    assert (answer.status_code, answer.headers["content-range"]) == (206, "bytes 100-149/1000")
    assert answer.content == client.get("/range/1000").content[100:150]
    assert client.get("/range/1000", headers={"Range": "bytes=2000-"}).status_code == 416


@pytest.mark.parametrize(("coding", "flag"), [("gzip", "gzipped"), ("deflate", "deflated")])
def test_codings_pass_untouched(client, coding, flag):
    answer = client.get(f"/{coding}")
    assert answer.headers["content-encoding"] == coding
    assert answer.json()[flag] is True


def test_cookies_are_set_and_deleted_one_by_one(client):
    answer = client.get("/cookies/set?a=1&b=2")
    assert (answer.status_code, len(answer.headers.get_list("set-cookie"))) == (302, 2)
    assert client.get("/cookies").json() == {"cookies": {"a": "1", "b": "2"}}
    client.get("/cookies/delete?a")
    assert client.get("/cookies").json() == {"cookies": {"b": "2"}}


def test_basic_and_digest_and_bearer_credentials(client):
    refused = client.get("/basic-auth/u/p", auth=("u", "wrong"))
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Basic realm="Fake Realm"')
    assert client.get("/basic-auth/u/p", auth=("u", "p")).json()["user"] == "u"
    assert client.get("/digest-auth/auth/u/p", auth=httpx.DigestAuth("u", "p")).json()["user"] == "u"
    assert client.get("/bearer", headers={"Authorization": "Bearer x.y"}).json()["token"] == "x.y"


def test_etags_and_conditions(client):
    assert client.get("/etag/v1", headers={"If-None-Match": '"v1"'}).status_code == 304
    assert client.get("/etag/v1", headers={"If-Match": '"v2"'}).status_code == 412
    assert client.get("/cache", headers={"If-Modified-Since": "Sat, 01 Jan 2022 00:00:00 GMT"}).status_code == 304


def test_text_outside_of_ascii_and_a_picture(client):
    assert "∮ E⋅da = Q" in client.get("/encoding/utf8").text
    picture = client.get("/image/png")
    assert picture.content.startswith(b"\x89PNG\r\n")
    assert picture.headers["content-length"] == str(len(picture.content))


def test_response_headers_of_the_clients_choice(client):
    answer = client.get("/response-headers", params={"X-Many": ["a", "b"], "Server": "mine"})
    assert answer.headers.get_list("x-many") == ["a", "b"]
    assert answer.headers.get_list("server") == ["mine"]


def test_head_has_the_fields_of_get(client):
    head, get = client.head("/html"), client.get("/html")
    assert head.content == b""
    assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.content))
