"""The guide on django-eventstream, followed in a new project: clients, a shell, a reload, and missed events."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from harness.addresses import free_address
from harness.held import Stream, holder_process
from harness.pages import DOCS, blocks
from harness.server import Server
from harness.tools import need_module
from harness.wire import Client
from server.probes import eventually

PAGE = DOCS / "guides/django-eventstream.md"
DEADLINE = 120
ADDRESS = "127.0.0.1:5561"
PADDING = b":" + b" " * 2048 + b"\n\n"


@pytest.fixture
def publish():
    return free_address()


@pytest.fixture
def site(tmp_path, publish):
    # The other modules need settings.
    need_module("gripcontrol")
    subprocess.run(
        [sys.executable, "-m", "django", "startproject", "mysite", str(tmp_path)], check=True, timeout=DEADLINE
    )
    for block in blocks(PAGE):
        if block.title:
            file = tmp_path / block.title
            before = file.read_text() + "\nALLOWED_HOSTS = ['*']\n" if file.name == "settings.py" else ""
            file.write_text(before + block.text.replace(ADDRESS, publish.bind))
    # The page's view is called without a browser's token.
    settings = tmp_path / "mysite/settings.py"
    settings.write_text(settings.read_text() + "MIDDLEWARE.remove('django.middleware.csrf.CsrfViewMiddleware')\n")
    manage(tmp_path, "migrate")
    return tmp_path


def manage(site, *arguments, check=True):
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=site,
        check=check,
        timeout=DEADLINE,
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "GRIP_URL"},
    )


def shell(site, code, **more):
    return manage(site, "shell", "-c", code, **more)


def ship(server, number):
    with Client(server.address) as client:
        client.send(f"POST /orders/{number}/ship HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n".encode())
        assert client.response("POST").status == 204


class Orders(Stream):
    """A stream of the page, behind the event that says that it is open."""

    def __init__(self, server, *fields):
        super().__init__(server.address, "/events/", *fields, body=PADDING + b"event: stream-open\ndata:\n\n")

    def number(self):
        event = self.event()
        assert event["event"] == "shipped", event
        self.last = event["id"]
        return json.loads(event["data"])["number"]


def test_the_guide_can_be_followed(site, publish):
    (code,) = re.findall(r"\$ python manage.py shell -c '(.*)'", PAGE.read_text())
    with (
        Server("mysite.wsgi", directory=site, publish_bind=publish, workers=2) as server,
        Orders(server) as one,
        Orders(server) as other,
    ):
        ship(server, 7)
        assert (one.number(), other.number()) == (7, 7)
        shell(site, code)
        assert (one.number(), other.number()) == (8, 8)
        assert holder_process(server.process.pid)
        server.send_signal(signal.SIGHUP)
        eventually(lambda: "reload complete" in server.log, "a reload")
        ship(server, 9)
        assert (one.number(), other.number()) == (9, 9)
        ship(server, 10)
        ship(server, 11)
        assert other.number() == 10
        with Orders(server, f"Last-Event-ID: {one.last}") as back:
            assert [back.number(), back.number()] == [10, 11]
            ship(server, 12)
            assert back.number() == 12
    assert "Traceback" not in server.log, server.log


def test_without_a_server_only_a_synchronous_event_is_an_error(site):
    send = 'from django_eventstream import send_event; send_event("orders", "shipped", {}, async_publish=%s)'
    assert shell(site, send % True, check=False).returncode == 0
    failed = shell(site, send % False, check=False)
    assert failed.returncode != 0
    assert "ValueError: failed to publish" in failed.stderr
