"""examples/seeds.py under Tailrace and another server: every shape arrives whole, and its page shows how it was
sent."""

import re
import urllib.request
import wsgiref.simple_server
import wsgiref.util
import wsgiref.validate

import pytest
from harness.programs import module_of

import tailrace

seeds = module_of("examples/seeds.py")


@pytest.fixture(scope="module")
def url(seeds):
    with tailrace.serve_in_thread(seeds.app) as server:
        yield server.url


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


def test_what_comes_from_outside_is_escaped(seeds, monkeypatch):
    record = dict.fromkeys(("app_ms", "first_block_ms", "drained_ms", "blocks", "bytes", "writes"), 1)
    monkeypatch.setattr(seeds, "LAST", {"/pong": lambda: {**record, "delivery": '"<i>', "ending": '"<i>'}})
    environ = {"SERVER_SOFTWARE": '"<i>', "SCRIPT_NAME": '/"<i>\xc3\xa9', "HTTP_HOST": '"<i>', "PATH_INFO": "/"}
    wsgiref.util.setup_testing_defaults(environ)
    page = b"".join(seeds.app(environ, lambda status, headers: None))
    assert b"<i>" not in page
    assert b'class="told &quot;&lt;i&gt;"' in page
    assert b'href="/%22%3Ci%3E%C3%A9/pong"' in page
