"""The applications of the guide on WebSockets, with the clients of their libraries."""

import re
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
from harness.encrypted import authority
from harness.fronts import nginx_with
from harness.server import Server
from harness.tools import need_tool

GUIDE = Path(__file__).parents[2] / "docs/guides/websockets.md"
PLACES = pytest.mark.parametrize("place", ["", "--gevent", "--preload", "https", "nginx"])


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
    with Server(f"{name}:app", *flags, directory=directory, address=address, threads=20, workers=1) as server:
        if place != "nginx":
            yield server.url, server
            return
        block = re.search(r"```nginx\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]
        front = free_address()
        site = f"server {{ listen {front.bind}; {block.replace('127.0.0.1:8000', server.address.bind)} }}"
        made = nginx_with(site)
        with Process(need_tool("nginx"), *made.arguments, address=front, files=made.files):
            yield f"http://{front.bind}", server


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
