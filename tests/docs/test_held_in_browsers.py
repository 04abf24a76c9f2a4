"""A page in Chromium with an event stream and a WebSocket that the server holds without threads, behind every front."""

import json
import signal

import pytest
from docs.test_web_sockets_guide import FRONTS
from frameworks.process import Process
from harness.addresses import free_address
from harness.browser import Browser, Chromium
from harness.held import Publisher, publish
from harness.operated import operating
from harness.tools import need_tool
from server.probes import eventually

SOURCE = r'''
import json

import tailrace

TYPE = "application/websocket-events"
PAGE = """<!doctype html><title>held</title><script>
window.streamed = [];
window.answered = [];
window.published = [];
window.opened = [0, 0];
window.ended = [0, 0];
const source = new EventSource("/events");
source.onopen = () => { window.opened[0] += 1; };
source.onerror = () => { window.ended[0] += 1; };
source.onmessage = (event) => window.streamed.push(Number(event.data));
const socket = new WebSocket(location.href.replace("http", "ws") + "ws/live");
socket.onopen = () => { window.opened[1] += 1; };
socket.onclose = () => { window.ended[1] += 1; };
socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    window[message.kind].push(message.number);
};
let asked = 0;
setInterval(() => { if (socket.readyState === 1) socket.send(String(asked++)); }, 20);
</script>"""


def event(name, content=b""):
    return b"%s %x\r\n%s\r\n" % (name, len(content), content)


def app(environ, start_response):
    if environ["PATH_INFO"] == "/ws/live":
        received, answer = environ["wsgi.input"].read(), []
        while received:
            line, _, received = received.partition(b"\r\n")
            name, _, size = line.partition(b" ")
            content, received = (received[: int(size, 16)], received[int(size, 16) + 2 :]) if size else (b"", received)
            if name == b"OPEN":
                answer.append(b"OPEN\r\n")
                answer.append(event(b"TEXT", b'c:{"type": "subscribe", "channel": "numbers"}'))
            if name == b"TEXT":
                answer.append(event(b"TEXT", b'm:{"kind": "answered", "number": %s}' % content))
        start_response("200 OK", [("Content-Type", TYPE), ("Sec-WebSocket-Extensions", "grip")])
        return answer
    if environ["PATH_INFO"] == "/events":
        start_response("200 OK", [("Content-Type", "text/event-stream"), *tailrace.hold("numbers").items()])
        return [b": open\n\n"]
    start_response("200 OK", [("Content-Type", "text/html")])
    return [PAGE.encode()]
'''


def publisher_at(address):
    """Publishes the numbers from 0 on, for both kinds of clients."""

    def item(number):
        numbers = json.dumps({"kind": "published", "number": number})
        formats = {"http-stream": {"content": f"id: {number}\ndata: {number}\n\n"}, "ws-message": {"content": numbers}}
        return {"channel": "numbers", "id": str(number), "formats": formats}

    return Publisher(lambda number: publish(address, item(number)))


@pytest.mark.parametrize("place", FRONTS)
def test_neither_is_closed_by_reloads_and_new_masters_and_nothing_is_lost(place, tmp_path):
    (tmp_path / "page.py").write_text(SOURCE)
    publishes, listen = free_address(), free_address()
    options = ("--websocket-events", "/ws/", "--publish-bind", publishes.bind, "--workers", "2")
    with operating(tmp_path, "page:app", *options) as server:
        front = FRONTS[place](listen.bind, server.address.bind)
        command = (need_tool(front.executable), *front.arguments)
        with (
            Process(*command, address=listen, files=front.files, statuses=front.statuses),
            Chromium(tmp_path / "profile") as chromium,
            Browser(chromium) as page,
        ):
            page.open(f"http://{listen.bind}/")
            eventually(lambda: page.value("window.opened") == [1, 1], "both are open")
            # Its subscription is made with the answer that opens it, so that it has what is published from now on.
            eventually(lambda: page.value("window.answered.length > 0"), "the WebSocket answers")
            with publisher_at(publishes) as publisher:
                publisher.goes_on()
                for turn in (1, 2):
                    server.tell(signal.SIGHUP)
                    server.replaced(turn)
                    publisher.goes_on()
                before = server.master
                server.tell(signal.SIGUSR2)
                server.logged(f"taken over from process {before}")
                server.until(lambda: before not in server.processes(), "the end of the old master")
                publisher.goes_on()
                count = publisher.stop()
            answered = page.value("window.answered.length")
            eventually(lambda: page.value("window.answered.length") > answered + 5, "the WebSocket answers again")
            eventually(lambda: page.value("window.streamed.length") >= count, "all events")
            eventually(lambda: page.value("window.published.length") >= count, "all publications")
            assert page.value("window.streamed") == page.value("window.published") == list(range(count))
            answers = page.value("window.answered")
            assert answers == list(range(len(answers)))
            assert (page.value("window.opened"), page.value("window.ended")) == ([1, 1], [0, 0])
