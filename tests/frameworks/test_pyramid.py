"""A Pyramid application through `pserve site.ini`, whose section says `use = egg:tailrace`."""

import hashlib
import sys
from pathlib import Path

import httpx
import pytest
from frameworks.process import Process
from harness.addresses import free_address
from harness.peers import PEER
from harness.server import APPS
from harness.tools import missing, need_module
from server.probes import eventually

need_module("pyramid")
if PEER:
    pytest.skip("the ini file names tailrace", allow_module_level=True)

SITE = APPS / "pyramid_site"


def pserve(ini, address, **files):
    """`pserve` with this file; files: what its directory has."""
    script = Path(sys.executable).with_name("pserve")
    if not script.exists():
        missing(f"{script} is not installed")
    command = (sys.executable, str(script), str(ini), f"port={address.port}")
    return Process(*command, address=address, environment={"PYTHONPATH": str(APPS)}, files=files)


@pytest.fixture(scope="module")
def server():
    with pserve(SITE / "site.ini", free_address()) as server:
        yield server


MINIMAL = """
[app:main]
use = call:pyramid_site:main
seeds.title = Seeds
[server:main]
use = egg:tailrace
listen = 127.0.0.1:%(port)s
"""
QUIET = """
[loggers]
keys = root, tailrace
[handlers]
keys = console
[formatters]
keys =
[logger_root]
level = WARNING
handlers = console
[logger_tailrace]
level = WARNING
qualname = tailrace
handlers =
[handler_console]
class = StreamHandler
args = (sys.stderr,)
"""


def test_an_ini_file_without_logging_shows_the_address():
    address = free_address()
    with pserve("{directory}/site.ini", address, **{"site.ini": MINIMAL}) as server:
        eventually(lambda: f"listening on {address.url}" in server.log, "the address")


def test_the_level_that_an_ini_file_sets_for_the_server_counts():
    address = free_address()
    with pserve("{directory}/site.ini", address, **{"site.ini": MINIMAL + QUIET}) as server:
        assert httpx.get(server.url).status_code == 200
        assert "listening on" not in server.log


def test_a_view_with_the_settings_of_the_ini_file(client):
    answer = client.get("/", params={"a": ["1", "ü"], "b": "2"})
    title = f"Seeds of {SITE / 'site.ini'}"
    assert answer.json() == {"title": title, "path": "/", "query": {"a": ["1", "ü"], "b": "2"}}
    assert answer.headers["x-tween"] == title
    assert answer.headers["server"] == "tailrace"


def test_an_upload_within_the_limit_of_the_ini_file_and_one_above(client):
    body = b"\r\n--" * 450_000
    answer = client.post("/upload", files={"file": ("b.bin", body)})
    assert answer.json() == {"name": "b.bin", "sha256": hashlib.sha256(body).hexdigest()}
    assert client.post("/upload", files={"file": ("c.bin", b"x" * (2 << 20))}).status_code == 413


def test_an_app_iter(client):
    assert client.get("/rows").text == "".join(f"{number}\n" for number in range(3000))


def test_files(client):
    source = (SITE / "__init__.py").read_bytes()
    answer = client.get("/source")
    assert (answer.content, answer.headers["content-length"]) == (source, str(len(source)))
    sheet = client.get("/static/seeds.css")
    assert sheet.content == (SITE / "static/seeds.css").read_bytes()
    assert sheet.headers["cache-control"] == "max-age=60"
    unchanged = client.get("/static/seeds.css", headers={"If-Modified-Since": sheet.headers["last-modified"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")


def test_the_ini_file_rules_the_log(client, server):
    client.get("/")
    assert f"ini-log INFO tailrace listening on http://127.0.0.1:{server.address.port}" in server.log
