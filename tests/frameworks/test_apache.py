"""Apache with mod_proxy in front, over TCP and over a UNIX socket, asking for 100-continue before each upload."""

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from apps.fw_delivery import content
from frameworks.process import Process, both, connections
from harness.addresses import free_address
from harness.tools import missing, need_tool

APACHE = need_tool("apache2")
MODULES = Path("/usr/lib/apache2/modules")
if not (MODULES / "mod_proxy_http.so").exists():
    missing(f"{MODULES} has no mod_proxy_http.so")

CONFIG = """
ServerRoot {directory}
ServerName test
DefaultRuntimeDir {directory}
PidFile {directory}/pid
ErrorLog {directory}/error.log
LogLevel warn
%(user)s
LoadModule mpm_event_module %(modules)s/mod_mpm_event.so
LoadModule authz_core_module %(modules)s/mod_authz_core.so
LoadModule proxy_module %(modules)s/mod_proxy.so
LoadModule proxy_http_module %(modules)s/mod_proxy_http.so
Listen %(listen)s
StartServers 1
ServerLimit 1
ThreadsPerChild 16
MaxRequestWorkers 16
ProxyPass /tcp/ http://%(tcp)s/ ping=20 timeout=20
ProxyPass /unix/ unix:%(unix)s|http://tailrace/ ping=20 timeout=20 enablereuse=on
"""
PLACES = pytest.mark.parametrize("place", ["tcp", "unix"])


@pytest.fixture(scope="module")
def trio():
    """tailrace, the Apache before it, and the path of the UNIX socket between them."""
    with (
        tempfile.TemporaryDirectory(prefix="pst-") as directory,
        both(f"{directory}/s", trusted_proxies="unix,127.0.0.1") as server,
    ):
        address = free_address()
        config = CONFIG
        values = {
            "user": "User www-data" if os.geteuid() == 0 else "",
            "modules": MODULES,
            "listen": address.bind,
            "tcp": server.address.bind,
            "unix": f"{directory}/s",
        }
        for key, text in values.items():
            config = config.replace(f"%({key})s", str(text))
        command = (APACHE, "-D", "FOREGROUND", "-f", "{directory}/apache.conf")
        if os.geteuid() == 0:
            # Its children are www-data: they must reach the socket.
            os.chmod(directory, 0o755)
            os.chmod(f"{directory}/s", 0o666)
        with Process(*command, address=address, files={"apache.conf": config}) as apache:
            yield server, apache, f"{directory}/s"
            assert "proxy:error" not in apache.log, apache.log


@pytest.fixture
def client(trio, browser):
    return browser(trio[1])


@PLACES
@pytest.mark.parametrize("shape", ["bytes", "blocks", "file"])
def test_a_large_download(client, place, shape):
    got = client.get(f"/{place}/{shape}/5000001").content
    assert len(got) == 5_000_001
    assert hashlib.sha256(got).digest() == hashlib.sha256(content(5_000_001)).digest()


@PLACES
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("length", [0, 10, 5_000_001])
def test_an_upload(client, place, length, chunked):
    body = content(length)
    pieces = (body[start : start + 70_000] for start in range(0, len(body), 70_000))
    seen = client.post(f"/{place}/digest", content=pieces if chunked else body).json()
    assert (seen["length"], seen["sha256"]) == (length, hashlib.sha256(body).hexdigest())
    assert seen["SERVER_PROTOCOL"] == "HTTP/1.1"
    assert seen["HTTP_X_FORWARDED_FOR"] == "127.0.0.1"


@PLACES
def test_connections_are_kept(trio, client, place):
    server, _, path = trio
    ports = set()
    for length in range(50):
        assert client.get(f"/{place}/{('bytes', 'blocks', 'file')[length % 3]}/{length}").content == content(length)
        ports.add(client.get(f"/{place}/").json().get("REMOTE_PORT"))
    # A pool of the child process, of which each of its 16 threads may take one.
    assert len(ports) <= 16
    assert 1 <= connections(server, path if place == "unix" else "") <= 16


@PLACES
def test_head(client, place):
    answer = client.head(f"/{place}/file/70000")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "70000")
