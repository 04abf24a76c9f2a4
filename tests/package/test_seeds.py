"""The example under Penstock: every shape arrives whole."""

import importlib.util
import urllib.request
from pathlib import Path

import pytest

import penstock

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "seeds.py"


@pytest.fixture(scope="module")
def seeds():
    spec = importlib.util.spec_from_file_location("seeds", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def url(seeds):
    with penstock.serve_in_thread(seeds.app) as served:
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
