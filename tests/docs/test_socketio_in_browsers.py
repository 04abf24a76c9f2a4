"""The application of the guide on Socket.IO with the JavaScript client in Chromium, through nginx."""

import re
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
from docs.test_web_sockets_guide import FRONTS
from frameworks.process import Process
from harness.addresses import free_address
from harness.browser import Browser, Chromium
from harness.operated import operating
from harness.tools import missing, need_tool
from server.probes import eventually

GUIDE = Path(__file__).parents[2] / "docs/guides/socketio.md"
# From `make test-tools`.
CLIENT = Path(sys.prefix, "share/socket.io.min.js")
PAGE = """<!doctype html><title>news</title><script src="socket.io.min.js"></script><script>
const transports = new URLSearchParams(location.search).get("transports");
const socket = io(transports ? {transports: [transports]} : {});
window.connects = 0;
window.answers = [];
window.news = [];
socket.on("connect", () => { window.connects += 1; });
socket.on("message", (text) => window.answers.push(text));
socket.on("news", (item) => window.news.push(item.number));
</script>"""
WORKERS = 4
PAGES = 4


def application():
    """That of the guide."""
    return re.search(r'```python title="news\.py"\n(.*?)```', GUIDE.read_text(), re.DOTALL)[1]


@pytest.mark.parametrize("transports", ["polling", "websocket", ""], ids=["polling", "websocket", "default"])
def test_browsers_get_what_every_worker_emits_and_reconnect_after_a_reload(transports, tmp_path):
    if not CLIENT.exists():
        missing(f"{CLIENT} is not there; `make test-tools` downloads it")
    (tmp_path / "news.py").write_text(application())
    # Flask's own folder for static files.
    (tmp_path / "static").mkdir()
    shutil.copy(CLIENT, tmp_path / "static")
    (tmp_path / "static/page.html").write_text(PAGE)
    listen = free_address()
    log = ("--access-log", "access.log", "--access-log-format", "{method} {path} {worker}")
    flags = ("--workers", str(WORKERS), "--threads", "20", "--sticky", "query:sid", *log)
    with operating(tmp_path, "news:app", *flags) as server, ExitStack() as stack:
        front = FRONTS["nginx"](listen.bind, server.address.bind)
        command = (need_tool(front.executable), *front.arguments)
        stack.enter_context(Process(*command, address=listen, files=front.files, statuses=front.statuses))
        chromium = stack.enter_context(Chromium(tmp_path / "profile"))
        clients = stack.enter_context(ThreadPoolExecutor(8))
        pages = [stack.enter_context(Browser(chromium)) for _ in range(PAGES)]

        def all_pages(script, what):
            eventually(lambda: all(page.value(script) for page in pages), what)

        def emit(number):
            answer = requests.post(f"http://{listen.bind}/news", json={"number": number}, timeout=10)
            assert answer.status_code == 204

        def emitting():
            lines = (tmp_path / "access.log").read_text().splitlines()
            return {worker for _, path, worker in map(str.split, lines) if path == "/news"}

        def work(text):
            """Each page gets an answer, and once what any worker emits."""
            (tmp_path / "access.log").write_text("")
            before = [page.value("window.news.length") for page in pages]
            for page in pages:
                page.value(f"void socket.emit('message', '{text}')")
            all_pages(f"window.answers.includes('{text.upper()}')", "answers")
            numbers = range(0)
            while len(emitting()) < 2:
                more = range(numbers.stop, numbers.stop + 20)
                assert more.stop < 2_000, "only one worker emits"
                list(clients.map(emit, more))
                numbers = range(more.stop)
            for page, count in zip(pages, before, strict=True):
                eventually(lambda: page.value("window.news.length") >= count + len(numbers), "news")  # noqa: B023
                # What several workers emit at a time has no order.
                assert sorted(page.value("window.news")[count:]) == list(numbers)

        for page in pages:
            page.open(f"http://{listen.bind}/static/page.html?transports={transports}")
        all_pages("socket.connected", "all are connected")
        used = transports or "websocket"
        all_pages(f"socket.io.engine.transport.name === '{used}'", "the transport")
        work("hello")
        assert [page.value("window.connects") for page in pages] == [1] * PAGES
        assert not [problem for page in pages for problem in page.problems]
        server.tell(signal.SIGHUP)
        # Four workers import Flask-SocketIO one after the other.
        eventually(lambda: "reload complete" in server.log, "the reload", 60)
        server.replaced()
        all_pages("socket.connected && window.connects > 1", "all have reconnected")
        all_pages(f"socket.io.engine.transport.name === '{used}'", "the transport")
        work("again")
    assert "Traceback" not in server.log
