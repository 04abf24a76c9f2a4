"""Files that frameworks send, by the names that they give to the server and by wsgi.file_wrapper."""

import importlib
import os
import sys
from urllib.parse import quote

import pytest
from frameworks.process import await_that
from harness.greenlets import GEVENT
from harness.peers import PEER
from harness.server import APPS, Server
from harness.tools import need_module

for module in ("django", "django_sendfile", "flask", "pyramid", "whitenoise"):
    need_module(module)
if PEER:
    pytest.skip("an option of tailrace", allow_module_level=True)

LARGE = bytes(range(256)) * 1000
NAMES = ["large.bin", "a b.txt", "50%25 é.txt", "日本 語.txt", "a long name with ASCII letters and 日.txt", "a.tar.gz"]
MODES = {"threads": [], "gevent": [] if GEVENT else ["--gevent"], "debug": ["--debug"]}

pytestmark = pytest.mark.skipif(GEVENT, reason="each kind of server is started anyway")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name in NAMES:
        (folder / name).write_bytes(LARGE if name == "large.bin" else name.encode())
        os.utime(folder / name, (1_700_000_000, 1_700_000_000))
    return folder


@pytest.fixture(params=MODES)
def start(request, files, browser):
    """`start(application)`: a client of a server with this application."""
    servers = []

    def start(application, *arguments, **environment):
        roots = ["--sendfile-root", str(files), "--sendfile-root", f"/protected={files}"]
        server = Server(
            f"fw_files:{application}()",
            *(arguments or roots),
            *MODES[request.param],
            environment={"FILES": str(files), **environment},
        )
        servers.append(server.__enter__())
        # Django would compress what it streams.
        return browser(server, headers={"Accept-Encoding": "identity"})

    yield start
    for server in servers:
        server.__exit__(None, None, None)


def is_served_in_every_form(client, content, path, *, types="application/octet-stream"):
    """What a browser asks for: all, none if it has it, and parts."""
    whole = client.get(path)
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["content-length"] == str(len(content))
    assert not {"x-sendfile", "x-accel-redirect"} & set(whole.headers)
    assert whole.headers["content-type"].startswith(types)
    tags = {"If-None-Match": whole.headers["etag"]} if "etag" in whole.headers else {}
    for fields in (tags, {"If-Modified-Since": whole.headers["last-modified"]}):
        if fields:
            unchanged = client.get(path, headers=fields)
            assert (unchanged.status_code, unchanged.content) == (304, b"")
    part = client.get(path, headers={"Range": "bytes=1-2"})
    assert (part.status_code, part.content) == (206, content[1:3])
    assert part.headers["content-range"] == f"bytes 1-2/{len(content)}"
    assert client.get(path, headers={"Range": f"bytes={len(content)}-"}).status_code == 416
    head = client.head(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(content)))
    return whole


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("backend", ["xsendfile", "nginx"])
def test_django_sendfile(start, files, backend):
    client = start("django_app", SENDFILE_BACKEND=backend)
    for name in NAMES:
        content = (files / name).read_bytes()
        types = {".bin": "application/octet-stream", ".txt": "text/plain", ".gz": "application/x-tar"}[
            name[name.rindex(".") :]
        ]
        if name.endswith(".gz"):
            with client.stream("GET", f"/{quote(name)}") as packed:
                assert b"".join(packed.iter_raw()) == content
                # Without it the type would be wrong.
                assert (packed.headers["content-encoding"], packed.headers["content-type"]) == ("gzip", types)
            continue
        whole = is_served_in_every_form(client, content, f"/{quote(name)}", types=types)
        assert "attachment" in whole.headers["content-disposition"]
    assert client.get("/missing").status_code == 404


@pytest.mark.nightly(gate=3)
@pytest.mark.parametrize("application", ["flask_app", "flask_x_sendfile"])
def test_flasks_send_file(start, files, application):
    client = start(application)
    for name in NAMES:
        if not name.endswith(".gz"):
            types = "application/octet-stream" if name.endswith(".bin") else "text/plain"
            for query in ("", "?plain"):
                content = (files / name).read_bytes()
                whole = is_served_in_every_form(client, content, f"/{quote(name)}{query}", types=types)
                assert "attachment" in whole.headers["content-disposition"]
    assert client.get("/missing").status_code == 404


def test_flasks_own_answers_stay_as_they_are(start, files, monkeypatch):
    monkeypatch.setenv("FILES", str(files))
    monkeypatch.syspath_prepend(APPS)
    monkeypatch.delitem(sys.modules, "fw_files", raising=False)
    alone = importlib.import_module("fw_files").flask_app().test_client()
    client = start("flask_app")
    tag = client.get("/large.bin").headers["etag"]
    for fields, status in (
        ({"If-None-Match": tag}, 304),
        ({"Range": "bytes=1-2"}, 206),
        ({"Range": "bytes=1-2", "If-Range": tag}, 206),
        ({"If-Match": '"other"'}, 412),
        ({"Range": "bytes=999999-"}, 416),
    ):
        served = client.get("/large.bin", headers=fields)
        with alone.get("/large.bin", headers=fields) as own:
            content = own.data
        assert (served.status_code, served.content) == (status, content)
        without = {"date", "server", "content-length"}
        assert {name: value for name, value in served.headers.items() if name not in without} == {
            name.lower(): value for name, value in own.headers if name.lower() not in without
        }


def test_djangos_file_response(start, files):
    client = start("django_app")
    whole = client.get("/response/large.bin")
    assert (whole.status_code, whole.content) == (200, LARGE)
    # Without a validator nobody could put parts together.
    assert client.get("/response/large.bin", headers={"Range": "bytes=1-2"}).status_code == 200
    is_served_in_every_form(client, LARGE, "/response/large.bin?dated")


def test_pyramids_file_response(start, files):
    client = start("pyramid_app")
    is_served_in_every_form(client, LARGE, "/large.bin")
    is_served_in_every_form(client, "日本 語.txt".encode(), f"/{quote('日本 語.txt')}", types="text/plain")


def test_whitenoise_in_front_of_the_same_files(start, files):
    client = start("whitenoise_app")
    for name in ("large.bin", "a b.txt"):
        types = "application/octet-stream" if name.endswith(".bin") else "text/plain"
        is_served_in_every_form(client, (files / name).read_bytes(), f"/{quote(name)}", types=types)
    assert client.get("/missing").text == "the application's"


def test_a_request_for_a_named_file_counts_as_one_of_the_worker(files, browser):
    environment = {"FILES": str(files)}
    application = "fw_files:flask_x_sendfile()"
    with Server(application, sendfile_root=files, max_requests=3, environment=environment) as server:
        client = browser(server)
        first = server.pid
        for _ in range(3):
            assert client.get("/a b.txt").text == "a b.txt"
        await_that(lambda: server.pid != first)
