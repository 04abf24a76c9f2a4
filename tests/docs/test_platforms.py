"""docs/guides/platforms.md: the command of each platform's file serves behind what that platform's router sends.

Each server runs in a network namespace that has the router's addresses, since these decide whom it trusts.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from harness.operated import Operated
from harness.pages import DOCS, blocks, codes, rows
from harness.programs import tailrace
from harness.toml import parse_toml
from harness.tools import missing, need_module, need_tool
from server.probes import eventually

PAGE = DOCS / "guides/platforms.md"
PORT = "8123"
CLIENT = "198.51.100.9"
# What clients send to pass for another.
FORGED = "192.0.2.66"
APP = """
import json
import time
from pathlib import Path


def app(environ, start_response):
    if environ["PATH_INFO"] == "/wait":
        Path("entered").touch()
        while not Path("gate").exists():
            time.sleep(0.01)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps([environ["REMOTE_ADDR"], environ["wsgi.url_scheme"], environ["HTTP_HOST"]]).encode()]
"""
# Adds addresses to the namespace, and becomes the command.
WITH_ADDRESSES = """
ip link set lo up
for address in $1; do ip address add "$address/32" dev lo; done
shift
exec "$@"
"""
ASK = """
import http.client, sys
router, port, *fields = sys.argv[1:]
connection = http.client.HTTPConnection(router, int(port), timeout=20, source_address=(router, 0))
connection.putrequest("GET", "/", skip_host=True)
for field in fields:
    connection.putheader(*field.split(": ", 1))
connection.endheaders()
print(connection.getresponse().read().decode())
"""


def block(title):
    (found,) = [each for each in blocks(PAGE) if each.title.startswith(title)]
    return found.text


class Platform:
    """What its file says: `command` in words, `environment`, and `grace`, the seconds between SIGTERM and SIGKILL.

    routers: from where its router connects. hops: what `X-Forwarded-For` has behind the client.
    """

    def __init__(self, name, routers, hops=()):
        self.name, self.routers, self.hops = name, routers, hops
        (self.row,) = [row for row in rows(PAGE, "platforms") if row[0].startswith(f"[{name}]")]
        self.environment = {}
        self.grace = seconds(self.row[5])
        getattr(self, name.lower().replace(".", "_").replace(" ", "_"))()

    def heroku(self):
        name, _, line = block("Procfile").strip().partition(": ")
        assert name == "web"
        self.command = shlex.split(line)

    def render(self):
        (service,) = need_module("yaml").safe_load(block("render.yaml"))["services"]
        self.command = shlex.split(service["startCommand"])
        self.environment = {each["key"]: each["value"] for each in service["envVars"]}
        self.grace = service["maxShutdownDelaySeconds"]

    def fly_io(self):
        found = parse_toml(block("fly.toml"))
        assert found["kill_signal"] == "SIGTERM"
        assert found["http_service"]["internal_port"] == int(found["env"]["PORT"])
        self.command = shlex.split(found["processes"]["app"])
        status = self.command[self.command.index("--status") + 1]
        assert status == f":{found['checks']['ready']['port']}"
        assert found["checks"]["ready"]["path"] == "/ready"
        self.grace = found["kill_timeout"]

    def cloud_run(self):
        found = need_module("dockerfile").parse_string(block("Dockerfile"))
        (command,) = [each for each in found if each.cmd.upper() == "CMD"]
        assert command.json
        self.command = list(command.value)

    def app_engine(self):
        self.command = shlex.split(need_module("yaml").safe_load(block("app.yaml"))["entrypoint"])

    def settings(self, directory):
        """What Tailrace understands of the command and the environment."""
        environment = {"PORT": PORT, "WEB_CONCURRENCY": "2", "FORWARDED_ALLOW_IPS": "*", **self.environment}
        done = tailrace("config", "--format", "json", *self.command[1:], cwd=directory, env=environment)
        assert done.returncode == 0, done.stderr
        return {name: found["value"] for name, found in json.loads(done.stdout).items()}


def seconds(cell):
    found = re.match(r"(\d+) s", cell)
    return int(found[1]) if found else None


PLATFORMS = [
    Platform("Heroku", ["10.1.45.23"]),
    # An edge of Cloudflare.
    Platform("Render", ["10.21.157.68"], ["104.22.17.40"]),
    Platform("Fly.io", ["172.16.3.34"], ["203.0.113.7"]),
    Platform("Cloud Run", ["169.254.169.126"]),
    Platform("App Engine", ["127.0.0.1", "169.254.1.1"]),
]
each_platform = pytest.mark.parametrize("platform", PLATFORMS, ids=lambda platform: platform.name)


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


@contextmanager
def deployed(platform, directory):
    """Its command, in a namespace: a function that asks it as a router does."""
    need_tool("ip")
    inside = [need_tool("unshare"), "--net", "--map-root-user"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        missing("no network namespace can be made")
    addresses = " ".join(router for router in platform.routers if router != "127.0.0.1")
    name, *arguments = platform.command
    assert name == "tailrace"
    environment = {"PORT": PORT, "WEB_CONCURRENCY": "2", "FORWARDED_ALLOW_IPS": "*", **platform.environment}
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            [*inside, "sh", "-c", WITH_ADDRESSES, "sh", addresses, sys.executable, "-m", "tailrace", *arguments],
            cwd=directory,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment},
            stdout=log,
            stderr=log,
        )

    def ask(router, *fields):
        enter = [need_tool("nsenter"), "--target", str(server.pid), "--user", "--net", "--preserve-credentials"]
        done = subprocess.run(
            [*enter, sys.executable, "-c", ASK, router, PORT, *fields],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def log():
        assert server.poll() is None, (directory / "log").read_text()
        return (directory / "log").read_text()

    try:
        eventually(lambda: log().count("ready in") == 2, "two workers")
        yield ask, log
    finally:
        server.terminate()
        assert server.wait(20) == 0


@each_platform
def test_its_command_serves_behind_its_router(platform, shop):
    headers = [
        "Host: shop.example",
        f"X-Forwarded-For: {', '.join((FORGED, CLIENT, *platform.hops))}",
        "X-Forwarded-Proto: https",
        # A router that passes these on leaves the choice to the client.
        f"Forwarded: for={FORGED};host=forged.example;proto=http",
        "X-Forwarded-Host: forged.example",
    ]
    with deployed(platform, shop) as (ask, log):
        for router in platform.routers:
            assert ask(router, *headers) == [CLIENT, "https", "shop.example"]
        assert f"PORT sets --bind to 0.0.0.0:{PORT}; WEB_CONCURRENCY sets --workers to 2" in log()
        # Nothing but what the client has written.
        warned = re.findall(r"WARNING: a request from \S+ had ([\w-]+), which --forwarded-headers does not name", log())
        assert set(warned) == {"Forwarded"}
        assert len(warned) == log().count("WARNING")


def test_a_router_with_another_address_is_named_in_the_log(shop):
    (heroku,) = [platform for platform in PLATFORMS if platform.name == "Heroku"]
    heroku = Platform("Heroku", ["172.31.0.9"])
    with deployed(heroku, shop) as (ask, log):
        assert ask("172.31.0.9", "Host: shop", f"X-Forwarded-For: {CLIENT}")[0] == "172.31.0.9"
        eventually(lambda: "add 172.31.0.9 to --trusted-proxies" in log(), "the warning")
    assert "add 10.1.45.23 to\n--trusted-proxies" in PAGE.read_text()


@each_platform
def test_the_addresses_of_its_router_are_those_that_the_command_trusts(platform, shop):
    trusted = platform.settings(shop)["trusted_proxies"]
    networks = re.findall(r"[\d.]+/\d+", platform.row[2])
    assert trusted[: len(networks)] == networks


@each_platform
def test_it_ends_before_it_is_killed_and_responds_before_its_router_does(platform, shop):
    chosen = platform.settings(shop)
    if platform.grace is not None:
        # A worker that has not ended is killed 5 s after the deadline.
        assert chosen["shutdown_delay"] + chosen["graceful_timeout"] + 5 <= platform.grace
    limit = seconds(platform.row[4])
    assert not chosen["request_timeout"] or chosen["request_timeout"] < limit
    for flag, value in zip(platform.command, platform.command[1:], strict=False):
        if flag == "--max-body":
            assert f"**[{value[:-3]} MiB]" in PAGE.read_text()


def test_what_the_lists_explain_is_in_the_commands():
    named = {span for line in PAGE.read_text().splitlines() if line.startswith("- **`--") for span in codes(line)[:1]}
    commands = [" ".join(platform.command) for platform in PLATFORMS]
    assert len(named) > 4
    assert not {span for span in named if not any(span in command for command in commands)}


def test_a_stop_that_reaches_every_process_loses_no_request(shop):
    """As on Heroku."""
    with Operated(shop, "shop:app", "--workers", "2", "--request-timeout", "25") as server:
        server.serves().logged("ready in", 2)
        client = server.address.connect()
        client.sendall(b"GET /wait HTTP/1.1\r\nHost: shop\r\n\r\n")
        eventually((shop / "entered").exists, "the request")
        for pid in server.processes():
            os.kill(pid, signal.SIGTERM)
        server.logged("SIGTERM")
        (shop / "gate").touch()
        assert client.recv(12) == b"HTTP/1.1 200"
        client.close()
        assert server.process.wait(20) == 0
