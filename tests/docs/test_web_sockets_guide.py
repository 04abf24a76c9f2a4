"""The applications of the guide on WebSockets, with the clients of their libraries."""

import re
import signal
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import requests
import simple_websocket
import socketio
from frameworks.process import Process
from harness.addresses import free_address
from harness.browser import Browser, Chromium
from harness.encrypted import authority
from harness.fronts import Front, nginx_with
from harness.server import Server
from harness.tools import need_module, need_tool
from harness.wire import Client
from server.probes import eventually

GUIDE = Path(__file__).parents[2] / "docs/guides/websockets.md"
PLACES = pytest.mark.parametrize("place", ["", "--gevent", "--preload", "https", "nginx", "haproxy", "caddy"])


@contextmanager
def served(directory, name, place, **changes):
    """The URL where the application of the guide is served. changes: of its source."""
    source = re.search(rf'```python title="{name}\.py"\n(.*?)```', GUIDE.read_text(), re.DOTALL)[1]
    for old, new in changes.values():
        assert old in source
        source = source.replace(old, new)
    (directory / f"{name}.py").write_text(source)
    address = replace(free_address(), is_encrypted=True) if place == "https" else None
    flags = [place] if place.startswith("--") else []
    made = Server(f"{name}:app", *flags, directory=directory, address=address, threads=20, workers=1)
    with behind(made, place) as found:
        yield found


@contextmanager
def behind(made, place):
    """The URL of a server, or of the front before it; and the server."""
    with made as server:
        if place not in FRONTS:
            yield server.url, server
            return
        listen = free_address()
        front = FRONTS[place](listen.bind, server.address.bind)
        command = (need_tool(front.executable), *front.arguments)
        with Process(*command, address=listen, files=front.files, statuses=front.statuses):
            yield f"http://{listen.bind}", server


def nginx(listen, upstream):
    """The site of the guide on nginx, with the changes of this one."""
    before, within = re.findall(r"```nginx\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    site = re.search(r"```nginx[^\n]*\n(upstream shop .*?)```", (GUIDE.parent / "nginx.md").read_text(), re.DOTALL)[1]
    changes = {
        "server unix:/run/shop/tailrace.sock;": f"server {upstream};",
        "listen 80;": f"listen {listen};",
        "server_name shop.example;": "",
        'proxy_set_header Connection "";': within,
        # As the guide says of other ports.
        "Host $host;": "Host $host:$server_port;",
    }
    for old, new in changes.items():
        assert site.count(old) == 1, old
        site = site.replace(old, new)
    return nginx_with(before + site)


def haproxy(listen, upstream):
    """Says nothing of WebSockets, as the guide says."""
    limits = "timeout connect 5s\n timeout client 60s\n timeout server 60s\n"
    text = f"defaults\n mode http\n {limits}listen all\n bind {listen}\n server one {upstream}\n"
    return Front("haproxy", ("-db", "-f", "{directory}/h.cfg"), {"h.cfg": text}, (0, 143, -15))


def caddy(listen, upstream):
    """Says nothing of WebSockets, as the guide says."""
    text = f"{{\n admin off\n}}\nhttp://{listen} {{\n reverse_proxy {upstream}\n}}\n"
    return Front("caddy", ("run", "--adapter", "caddyfile", "--config", "{directory}/Caddyfile"), {"Caddyfile": text})


FRONTS = {"nginx": nginx, "haproxy": haproxy, "caddy": caddy}


def session():
    made = requests.Session()
    made.trust_env = False
    made.verify = str(authority().root)
    return made


@PLACES
def test_the_chat_echoes_messages_of_every_size_in_many_connections(place, tmp_path):
    with served(tmp_path, "chat", place) as (url, server):
        answers = []

        def talk(number):
            context = authority().client() if place == "https" else None
            client = simple_websocket.Client(url.replace("http", "ws") + "/echo", ssl_context=context)
            for size in (0, 1, 125, 126, 65_536, 300_000):
                text = chr(97 + number) * size
                client.send(text)
                answers.append(client.receive(timeout=20) == text)
            client.send(bytes(range(256)))
            answers.append(client.receive(timeout=20) == bytes(range(256)))
            client.close()

        threads = [threading.Thread(target=talk, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert answers == [True] * 70
    assert "Traceback" not in server.log, server.log


@PLACES
def test_a_page_of_another_site_is_refused(place, tmp_path):
    with served(tmp_path, "chat", place) as (url, _server), session() as asking:
        asks = {"Connection": "upgrade", "Upgrade": "websocket", "Origin": "https://evil.example"}
        asks |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        assert asking.get(f"{url}/echo", headers=asks).status_code == 403


@PLACES
def test_the_rooms_answer_over_a_web_socket_and_after_polling(place, tmp_path):
    mode = {"mode": ('"threading"', '"gevent"')} if place == "--gevent" else {}
    with served(tmp_path, "rooms", place, **mode) as (url, server):
        for transports in (["websocket"], ["polling", "websocket"]):
            client = socketio.Client(http_session=session())
            got = threading.Event()
            texts = []

            def on_message(text, texts=texts, got=got):
                texts.append(text)
                got.set()

            client.on("message", on_message)
            client.connect(url, transports=transports, wait_timeout=20)
            client.send("hello")
            assert got.wait(20) and texts == ["HELLO"]
            assert client.transport() == "websocket"
            client.disconnect()
    assert "Traceback" not in server.log, server.log


PAGE = """
from flask import Flask
from flask_sock import Sock

app = Flask(__name__)
sock = Sock(app)
SCRIPT = '''
window.got = [];
window.opened = 0;
function connect() {
    const socket = new WebSocket(location.href.replace("http", "ws") + "count");
    socket.onopen = () => { window.opened += 1; };
    socket.onmessage = (event) => window.got.push(Number(event.data));
    socket.onclose = () => setTimeout(connect, 50);
}
connect();
'''


@app.get("/")
def page():
    return f"<!doctype html><title>counting</title><script>{SCRIPT}</script>"


@sock.route("/count")
def count(ws):
    number = 0
    while True:
        number += 1
        ws.send(str(number))
        ws.receive(timeout=0.05)
"""


@pytest.mark.parametrize("place", ["", "nginx", "haproxy", "caddy"])
def test_a_page_in_a_browser_is_connected_again_after_a_reload(place, tmp_path):
    (tmp_path / "counting.py").write_text(PAGE)
    with (
        behind(Server("counting:app", directory=tmp_path, threads=10, workers=1), place) as (url, server),
        Chromium(tmp_path / "profile") as chromium,
        Browser(chromium) as page,
    ):
        page.open(f"{url}/")
        eventually(lambda: page.value("window.got.length > 3"), "messages arrive")
        (before,) = server.workers()
        server.send_signal(signal.SIGHUP)
        eventually(lambda: server.workers() not in ([], [before]), "the worker is replaced")
        eventually(lambda: page.value("window.opened > 1"), "the page is connected again")
        seen = page.value("window.got.length")
        eventually(lambda: page.value("window.got.length") > seen + 3, "messages arrive again")
    assert "Traceback" not in server.log, server.log


DJANGO = """
from django.conf import settings
from django.urls import path

settings.configure(
    SECRET_KEY="x",
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["django_grip.GripMiddleware", "django.middleware.csrf.CsrfViewMiddleware"],
    GRIP_URL="http://%s",
)
import django

django.setup()
from django.core.wsgi import get_wsgi_application

import views

urlpatterns = [path("ws/chat", views.chat)]
app = get_wsgi_application()
"""


@contextmanager
def without_threads(directory, name, place, publish):
    """The URL where the application of the guide gets messages as requests."""
    text = GUIDE.read_text()
    (directory / "live.py").write_text(re.search(r'```python title="live\.py"\n(.*?)```', text, re.DOTALL)[1])
    (directory / "views.py").write_text(re.search(r'```python title="views\.py"\n(.*?)```', text, re.DOTALL)[1])
    (directory / "chats.py").write_text(DJANGO % publish.bind)
    flags = ["--websocket-events", "/ws/"]
    made = Server(f"{name}:app", *flags, directory=directory, workers=2, threads=1, publish_bind=publish)
    with behind(made, place) as found:
        yield found


def talker(url):
    return simple_websocket.Client(url.replace("http", "ws") + "/ws/chat")


def test_without_threads_a_library_cannot_take_over_a_connection(tmp_path):
    changes = {"route": ('"/echo"', '"/<path:place>"'), "parameter": ("def echo(ws)", "def echo(ws, place)")}
    with served(tmp_path, "chat", "--websocket-events=/ws/", **changes) as (url, server):
        fields = ["Connection: upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        fields += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
        # The library serves GET requests, and this is a POST request.
        assert server.get("/ws/echo", *fields).status == 405
        client = simple_websocket.Client(url.replace("http", "ws") + "/echo")
        client.send("hello")
        assert client.receive(timeout=20) == "hello"
        client.close()
    assert "Traceback" not in server.log, server.log


@pytest.mark.parametrize("place", ["", "nginx", "haproxy", "caddy"])
@pytest.mark.parametrize("name", ["live", "chats"])
def test_without_threads_a_message_reaches_all_clients_before_and_after_a_reload(name, place, tmp_path):
    if name == "chats":
        need_module("gripcontrol")
    with without_threads(tmp_path, name, place, free_address()) as (url, server):
        clients = [talker(url) for _ in range(20)]
        # Each is subscribed once its first message has come back.
        for number, client in enumerate(clients):
            client.send(f"first {number}")
            await_text(client, f"first {number}")
        for client in clients[:-1]:
            await_text(client, f"first {number}")
        for number, text in enumerate(["hello", "ö" * 40_000]):
            clients[number].send(text)
            assert all(client.receive(timeout=20) == text for client in clients)
        server.send_signal(signal.SIGHUP)
        eventually(lambda: "reload complete" in server.log, "a reload")
        clients[0].send("again")
        assert all(client.receive(timeout=20) == "again" for client in clients)
        for client in clients:
            client.close(1000, "bye")
    assert "Traceback" not in server.log, server.log


def await_text(client, text):
    while (found := client.receive(timeout=20)) != text:
        assert found is not None, text


def test_without_threads_other_origins_and_clients_that_pretend_to_be_a_server_are_refused(tmp_path):
    asks = ["GET /ws/chat HTTP/1.1", "Host: test", "Connection: upgrade", "Upgrade: websocket"]
    asks += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    foreign = [*asks, "Origin: https://evil.example"]
    unknown = [*asks, "Sec-WebSocket-Extensions: x-webkit-deflate-frame, grip"]
    pretending = ["POST /ws/chat HTTP/1.1", "Host: test", "Content-Type: application/websocket-events"]
    with without_threads(tmp_path, "live", "", free_address()) as (_url, server):

        def ask(lines):
            with Client(server.address) as client:
                client.send("\r\n".join([*lines, "", ""]).encode())
                return client.head()

        assert ask(foreign).status == 403
        opened = ask(unknown)
        assert opened.status == 101 and "sec-websocket-extensions" not in opened
        # The tests reach the server from the address of a proxy that is trusted.
        assert ask([*pretending, "X-Forwarded-For: 192.0.2.1", "Content-Length: 0"]).status == 403
