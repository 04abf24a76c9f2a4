"""`--shutdown-delay`: a proxy that notices late that a node stops loses no request, and without the delay it does."""

import signal
import urllib.error
import urllib.request

import pytest
from frameworks.process import Process, await_that
from harness.addresses import free_address
from harness.fronts import nginx_with
from harness.operated import Checking
from harness.server import Server, children
from harness.tools import need_tool

# It does not try another node: what a client would see of a node that is gone is an error.
HAPROXY = """
defaults
    mode http
    retries 0
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend all
    bind {listen}
    default_backend nodes
backend nodes
    option httpchk GET /ready
    default-server check inter 500ms fall 2
    server one {first} port {status}
    server two {second} port {other}
"""
NGINX = """
upstream nodes {
    %s
}
server {
    listen %s;
    location / {
        proxy_pass http://nodes;
        proxy_next_upstream off;
    }
}
"""


class Node:
    def __init__(self, **options):
        self.status = free_address()
        self.server = Server("fw_nodes:app", "--workers", "2", status=self.status, **options)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.status.url}/ready", timeout=10) as answer:
                return answer.status == 200
        except urllib.error.HTTPError as error:
            with error:
                return False


def stop(node, load, has_noticed):
    """Stops a node under load; `has_noticed` is true once no more requests are sent to it."""
    load.go_on()
    node.server.send_signal(signal.SIGTERM)
    await_that(lambda: not node.is_ready())
    await_that(has_noticed)
    load.go_on()
    # The delay would take long, so that no test depends on its length. A second SIGTERM might come so soon that it
    # counts as the first.
    node.server.send_signal(signal.SIGINT)
    assert node.server.wait() == 0
    load.go_on()


def test_haproxy_loses_nothing_though_it_notices_late():
    first, second, listen = Node(shutdown_delay=300), Node(), free_address()
    with first.server, second.server:
        text = HAPROXY.format(
            listen=listen.bind,
            first=first.server.address.bind,
            second=second.server.address.bind,
            status=first.status.port,
            other=second.status.port,
        )
        command = (need_tool("haproxy"), "-db", "-f", "{directory}/haproxy.cfg")
        with Process(*command, address=listen, files={"haproxy.cfg": text}, statuses=(0, 143, -15)) as haproxy:
            with Checking(listen, keeps=False) as load:
                stop(first, load, lambda: "Server nodes/one is DOWN" in haproxy.log)
            assert load.faults == []
    log = first.server.log
    assert "SIGTERM: serving for another 300 s (--shutdown-delay), not ready any more" in log
    assert log.index("SIGTERM: serving for") < log.index("SIGINT: finishing the requests in flight")


def nginx_before(listen, *nodes):
    servers = "\n    ".join(f"server {node.bind} max_fails=0;" for node in nodes)
    return nginx_with(NGINX % (servers, listen.bind))


@pytest.mark.parametrize("delay", [300, 0])
def test_nginx_loses_nothing_if_its_configuration_changes_during_the_delay(delay):
    first, second, listen = Node(shutdown_delay=delay), Node(), free_address()
    with first.server, second.server:
        nginx = nginx_before(listen, first.server.address, second.server.address)
        with Process(need_tool("nginx"), *nginx.arguments, address=listen, files=nginx.files) as process:
            with Checking(listen, keeps=False) as load:
                if not delay:
                    load.go_on()
                    first.server.stop()
                    await_that(lambda: len(load.faults) > 0)
                    return
                for name, text in nginx_before(listen, second.server.address).files.items():
                    (process.directory / name).write_text(text.replace("{directory}", str(process.directory)))

                former = set(children(process.process.pid))

                def has_noticed():
                    process.process.send_signal(signal.SIGHUP)
                    await_that(lambda: not former & set(children(process.process.pid)))
                    return True

                stop(first, load, has_noticed)
            assert load.faults == []
