"""examples/seeds.py under Tailrace and another server: every shape arrives whole, and its page shows how it was
sent."""

import importlib.util
import json
import re
import threading
import urllib.request
import wsgiref.simple_server
import wsgiref.util
import wsgiref.validate
from pathlib import Path

import pytest

import tailrace

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "seeds.py"


@pytest.fixture(scope="module")
def seeds():
    spec = importlib.util.spec_from_file_location("seeds", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def url(seeds):
    with tailrace.serve_in_thread(seeds.app) as served:
        yield served


def get(url, data=None):
    with urllib.request.urlopen(url, data, timeout=60) as response:
        return response.headers, response.read()


def test_the_index_links_every_shape(seeds, url):
    headers, body = get(url + "/")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    for shape in seeds.SHAPES:
        assert f'href="{shape.path}"' in body.decode()


def test_the_files_have_their_sizes(seeds):
    assert (len(seeds.DECK), len(seeds.WORDS), len(seeds.PAGE)) == (688_128, 2_493_109, 21_324)
    assert seeds.DECK_PATH.read_bytes() == seeds.DECK == seeds.make_deck()
    assert seeds.make_words() == seeds.WORDS


@pytest.mark.parametrize("shape", ["list", "bytes", "file", "wrapper", "byte-by-byte"])
def test_the_deck_in_each_shape(seeds, url, shape):
    headers, body = get(f"{url}/deck/{shape}")
    assert headers["Content-Length"] == "688128"
    assert body == seeds.DECK


def test_the_other_shapes(seeds, url):
    assert get(url + "/words")[1] == seeds.WORDS
    assert get(url + "/page")[1] == seeds.PAGE
    assert get(url + "/slow")[1] == b"HelloWorld"
    headers, body = get(url + "/pong")
    assert body == b"pong"
    assert len(set(headers) - {"Date", "Server", "Connection"}) == 15


def test_a_body_comes_back(seeds, url):
    assert get(url + "/echo", seeds.DECK)[1] == seeds.DECK
    assert get(url + "/echo")[1] == b""


@pytest.fixture
def forgotten(seeds, monkeypatch):
    """Nothing was asked for yet."""
    monkeypatch.setattr(seeds, "LAST", {})


def told(page, path):
    """What the page tells of a shape, as a dict of figures or a sentence."""
    row = next(row for row in page.decode().split("<li>") if row.startswith(f'<a href="{path}"'))
    figures = dict(re.findall(r"<dt>(.*?)<dd>(.*?)</div>", row))
    return figures or re.search(r'<p class="told">(.*?)</p>', row)[1]


def finished(url, path):
    """What the page tells of a shape once the server is done with it, which may be after its last byte has come."""
    for _ in range(1000):
        figures = told(get(url + "/")[1], path)
        if figures["Ending"] != "open":
            return figures
    pytest.fail(f"the record of {path} stays open")


@pytest.mark.usefixtures("forgotten")
def test_a_record_appears_after_its_request(seeds, url):
    paths = [shape.path for shape in seeds.SHAPES]
    assert {told(get(url + "/")[1], path) for path in paths} == {""}
    get(url + "/words")
    figures = finished(url, "/words")
    assert (figures["Blocks"], figures["Bytes"], figures["Ending"]) == ("19,478", "2,493,109", "complete")
    assert re.fullmatch(r"[\d,.]+ ms", figures["Application"])
    assert re.fullmatch(r"[\d,.]+ ms", figures["First block"])
    page = get(url + "/")[1]
    assert [path for path in paths if told(page, path) != ""] == ["/words"]


@pytest.mark.usefixtures("forgotten")
def test_the_records_are_there_as_json(seeds, url):
    get(url + "/deck/list")
    headers, body = get(url + "/records")
    assert headers["Content-Type"] == "application/json"
    answer = json.loads(body)
    assert answer["told"] is True
    record = answer["records"].pop("/deck/list")
    assert (record["status"], record["blocks"], record["bytes"]) == (200, 1, 688_128)
    assert answer["records"] == {shape.path: None for shape in seeds.SHAPES if shape.path != "/deck/list"}


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("path", "delivery"),
    [
        ("/pong", "one-write"),
        ("/page", "one-write"),
        ("/deck/list", "one-write"),
        ("/deck/bytes", "one-write"),
        ("/deck/file", "sendfile"),
        ("/deck/wrapper", "sendfile"),
        ("/slow", "direct"),
    ],
)
def test_keeping_records_leaves_each_shape_its_way(url, path, delivery):
    get(url + path)
    get(url + path)
    assert told(get(url + "/")[1], path)["Delivery"] == delivery


RECORD = {
    "app_ms": 1234.5,
    "first_block_ms": None,
    "drained_ms": 1,
    "blocks": 3,
    "bytes": 4096,
    "writes": 2,
    "delivery": "direct",
}


def test_the_time_in_the_application_is_told_when_it_is_over(seeds):
    assert seeds.figures(RECORD | {"ending": "open"})["Application"] == "\N{EN DASH}"
    assert seeds.figures(RECORD | {"ending": "client-gone"}) == {
        "Application": "1,234 ms",
        "First block": "\N{EN DASH}",
        "Last byte": "1.00 ms",
        "Blocks": "3",
        "Bytes": "4,096",
        "Writes": "2",
        "Delivery": "direct",
        "Ending": "client gone",
    }
    assert [seeds.milliseconds(value) for value in (0.0349, 12.34, 123.4)] == ["0.03 ms", "12.3 ms", "123 ms"]


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture
def other_url(seeds):
    """The same application on a server that does not tell, checked against the standard."""
    application = wsgiref.validate.validator(seeds.app)
    with wsgiref.simple_server.make_server("127.0.0.1", 0, application, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("forgotten")
def test_a_server_that_does_not_tell_is_named_so(seeds, other_url):
    for path, content in [("/page", seeds.PAGE), ("/words", seeds.WORDS), ("/deck/wrapper", seeds.DECK)]:
        assert get(other_url + path)[1] == content
    page = get(other_url + "/")[1]
    assert b"Served by WSGIServer" in page
    assert b"This server does not tell" in page
    assert {told(page, shape.path) for shape in seeds.SHAPES} == {""}
    answer = json.loads(get(other_url + "/records")[1])
    assert answer == {"told": False, "records": {shape.path: None for shape in seeds.SHAPES}}


def test_what_comes_from_outside_is_escaped(seeds, monkeypatch):
    monkeypatch.setattr(seeds, "LAST", {"/pong": lambda: RECORD | {"delivery": '"<i>', "ending": '"<i>'}})
    environ = {"SERVER_SOFTWARE": '"<i>', "SCRIPT_NAME": '/"<i>\xc3\xa9', "HTTP_HOST": '"<i>', "PATH_INFO": "/"}
    wsgiref.util.setup_testing_defaults(environ)
    page = b"".join(seeds.app(environ, lambda status, headers: None))
    assert b"<i>" not in page
    assert b'class="told &quot;&lt;i&gt;"' in page
    assert b'href="/%22%3Ci%3E%C3%A9/pong"' in page
