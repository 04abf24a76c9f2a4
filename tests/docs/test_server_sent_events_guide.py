"""The applications of the guide on event streams: held without threads, behind proxies, and in a browser."""

import importlib
import json
import re
import sys
import time
import urllib.request

import pytest
from docs.test_web_sockets_guide import FRONTS, behind
from harness.addresses import free_address
from harness.browser import Browser, Chromium
from harness.held import Stream, poll
from harness.pages import DOCS, ROOT, blocks, rows
from harness.server import Server
from harness.tools import need_module
from harness.wire import Client
from server.probes import eventually

import tailrace

PAGE = DOCS / "guides/server-sent-events.md"
SITE = """
from django.conf import settings
from django.urls import path

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
import django

django.setup()
from django.core.wsgi import get_wsgi_application

import views

urlpatterns = [path("events", views.events), path("orders/<int:number>/ship", views.ship)]
app = get_wsgi_application()
"""


def block(name):
    (found,) = [each for each in blocks(PAGE) if each.title == name]
    return found.text


def serving(directory, name, *arguments, **more):
    """The server of an application of the guide."""
    (directory / f"{name}.py").write_text(SITE if name == "site_of_views" else block(f"{name}.py"))
    return Server(f"{name}:app", *arguments, directory=directory, workers=2, threads=2, **more)


def send(address, target, method="POST", fields=()):
    with Client(address) as client:
        client.send("\r\n".join([f"{method} {target} HTTP/1.1", "Host: test", *fields, "", ""]).encode())
        return client.response(method)


def document(response):
    assert response.status == 200, response
    return json.loads(response.body)


@pytest.mark.parametrize(("name", "module"), [("shop", "flask"), ("site_of_views", "django")])
def test_an_order_that_ships_reaches_every_stream(tmp_path, name, module):
    need_module(module)
    (tmp_path / "views.py").write_text(block("views.py"))
    with (
        serving(tmp_path, name) as server,
        Stream(server.address, "/events") as one,
        Stream(server.address, "/events") as other,
    ):
        assert one.response["x-accel-buffering"] == "no"
        assert send(server.address, "/orders/7/ship").status in (200, 204)
        for stream in (one, other):
            event = stream.event()
            assert (event["event"], event["data"]) == ("shipped", '{"number":7}')


def test_the_script_of_the_page_gets_the_event(tmp_path):
    need_module("flask")
    (script,) = [each.text for each in blocks(PAGE) if each.language == "javascript"]
    shown = script.replace("console.log(", "window.got.push(")
    assert shown != script
    page = f"<!doctype html><title>x</title><script>window.got = [];\n{shown}\n</script>"
    source = block("shop.py") + f'\n\n@app.get("/")\ndef page():\n    return """{page}"""\n'
    (tmp_path / "shop.py").write_text(source)
    with (
        Server("shop:app", directory=tmp_path, workers=1) as server,
        Chromium(tmp_path / "profile") as chromium,
        Browser(chromium) as browser,
    ):
        browser.open(f"{server.url}/")
        eventually(lambda: browser.value("source.readyState") == 1, "the stream is open")
        send(server.address, "/orders/7/ship")
        eventually(lambda: browser.value("window.got.length") == 1, "the event")
        assert browser.value("window.got[0]") == 7


@pytest.mark.parametrize("place", FRONTS)
def test_a_proxy_needs_no_settings_for_a_stream(tmp_path, place):
    need_module("flask")
    # Its timeouts are those of the guides; the comment comes more often, so that the test need not wait for 20 s.
    source = block("shop.py").replace('hold("orders")', 'hold("orders", keep_alive=1)')
    assert source != block("shop.py")
    (tmp_path / "shop.py").write_text(source)
    with behind(Server("shop:app", directory=tmp_path, workers=1), place) as (url, server):
        with urllib.request.urlopen(f"{url}/events", timeout=30) as stream:
            assert [stream.readline(), stream.readline()] == [b": open\n", b"\n"]
            send(server.address, "/orders/7/ship")
            event = [stream.readline().split(b":")[0] for _ in range(4)]
            assert event == [b"event", b"id", b"data", b"\n"]
            begun = time.monotonic()
            assert [stream.readline(), stream.readline()] == [b":\n", b"\n"]
            assert time.monotonic() - begun < 5


def test_a_task_publishes_from_another_process(tmp_path, monkeypatch):
    need_module("flask")
    need_module("celery")
    (tmp_path / "tasks.py").write_text(block("tasks.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    address = free_address()
    monkeypatch.setenv("TAILRACE_PUBLISH_URL", address.bind)
    try:
        tasks = importlib.import_module("tasks")
        with (
            serving(tmp_path, "shop", publish_bind=address) as server,
            Stream(server.address, "/events") as stream,
        ):
            tasks.ship(9)
            assert stream.event()["data"] == '{"number":9}'
            tailrace.publish("orders", {"number": 10}, to=address.bind)
            assert stream.event()["data"] == '{"number":10}'
    finally:
        sys.modules.pop("tasks", None)


def test_a_feed_sends_what_the_client_has_missed_once(tmp_path):
    need_module("flask")
    # One worker, as the messages are in its memory.
    (tmp_path / "feed.py").write_text(block("feed.py"))
    with Server("feed:app", directory=tmp_path, workers=1) as server:
        with Stream(server.address, "/events", "Last-Event-ID: 1", body=b"") as stream:
            assert [stream.event() for _ in range(2)] == [
                {"id": "2", "data": "second"},
                {"id": "3", "data": "third"},
            ]
            assert document(send(server.address, "/messages/fourth")) == {"id": "4"}
            assert stream.event() == {"id": "4", "data": "fourth"}
        document(send(server.address, "/messages/fifth"))
        with Stream(server.address, "/events", "Last-Event-ID: 4", body=b"") as stream:
            document(send(server.address, "/messages/sixth"))
            assert stream.data(2) == ["fifth", "sixth"]
        with Stream(server.address, "/events", body=b"") as stream:
            document(send(server.address, "/messages/seventh"))
            assert stream.data(1) == ["seventh"]


def test_only_users_get_streams_and_each_only_theirs(tmp_path):
    need_module("flask")
    publish = free_address()
    with serving(tmp_path, "private", publish_bind=publish) as server:
        assert send(server.address, "/events", "GET").status == 403
        cookie = send(server.address, "/login/ann")["set-cookie"].split(";")[0]
        with Stream(server.address, "/events", f"Cookie: {cookie}") as stream:
            for channel in ("user-bob", "user-ann", "news"):
                tailrace.publish(channel, channel, to=publish.bind)
            assert stream.data(2) == ["user-ann", "news"]
            # As the guide says of users who have lost access.
            closing = {"channel": "user-ann", "formats": {"http-stream": {"action": "close"}}}
            tailrace.publishing.publish_items([closing], to=publish.bind)
            assert stream.ending() == b""


def test_a_long_poll_is_answered_by_the_first_event_or_after_its_time(tmp_path):
    need_module("flask")
    source = block("poll.py")
    assert "timeout=25" in source
    (tmp_path / "poll.py").write_text(source.replace("timeout=25", "timeout=1"))
    with Server("poll:app", directory=tmp_path, workers=1) as server:
        with poll(server.address, "/next") as client:
            assert document(client.response("GET")) is None
    with serving(tmp_path, "poll") as server, poll(server.address, "/next") as client:
        eventually(lambda: "holds connections" in server.log, "the response is held")
        document(send(server.address, "/orders/7"))
        assert document(client.response("GET")) == {"number": 7}


def test_the_limits_of_the_page_are_those_of_the_core():
    sources = {name: (ROOT / f"crates/{name}.rs").read_text() for name in ("holder/src/grip", "holder/src/channels")}
    sources |= {
        name: (ROOT / f"crates/{name}.rs").read_text()
        for name in ("holder/src/publication", "server/src/connection/to_holder", "holder/src/held")
    }

    def constant(name, source):
        return re.search(rf"\bconst {name}: \w+ = (.*?);", sources[source])[1]

    assert constant("MAX_CHANNELS", "holder/src/grip") == "100"
    assert constant("MAX_NAME", "holder/src/grip") == "1024"
    assert constant("MAX_DOCUMENT", "holder/src/publication") == "1 << 20"
    assert constant("MAX_BODY", "server/src/connection/to_holder") == "1 << 20"
    assert "bytes: 64 << 20, time: Duration::from_secs(300)" in sources["holder/src/channels"]
    assert "const RETRY: (u64, u64) = (1_000, 10_000);" in sources["holder/src/held"]
    assert "const RESPONSE_TIMEOUT: u32 = 55;" in sources["holder/src/grip"]
    values = [value for _, value in rows(PAGE, "limits")]
    assert values[:4] == ["100", "1,024 bytes", "1 MiB", "64 MiB, 5 minutes"]
