"""What docs/troubleshooting.md says of 502: nginx logs each phrase of the table for the cause beside it."""

import os
import shutil
import socket
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from frameworks.process import Process
from harness.addresses import free_address
from harness.fronts import nginx_with
from harness.pages import DOCS, rows
from harness.server import Server
from harness.tools import need_tool

SITE = """
server {
    listen %(listen)s;
    location /refused { proxy_pass http://%(closed)s; }
    location /missing { proxy_pass http://unix:%(sockets)s/missing.sock; }
    location /denied { proxy_pass http://unix:%(sockets)s/denied.sock; }
    location / { proxy_pass http://%(server)s; }
}
"""
PHRASES = {
    "/refused": "connect() failed (111: Connection refused)",
    "/missing": "connect() to unix:/run/shop/tailrace.sock failed (2: No such file or directory)",
    "/denied": "connect() to unix:/run/shop/tailrace.sock failed (13: Permission denied)",
    "/crash": "upstream prematurely closed connection while reading response header from upstream",
    "/large": "upstream sent too big header while reading response header from upstream",
}


@pytest.fixture
def sockets():
    """A directory that everybody may enter, with a socket that nobody else may open."""
    folder = Path(tempfile.mkdtemp(prefix="pst-"))
    folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as denied:
        denied.bind(str(folder / "denied.sock"))
        denied.listen()
        (folder / "denied.sock").chmod(0o600)
        yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="nginx's workers must be another user than the owner of a socket")
def test_nginx_logs_what_the_table_says(sockets):
    listen, closed = free_address(), free_address()
    with Server("shop:app", directory=Path(__file__).parent) as server:
        values = {"listen": listen.bind, "closed": closed.bind, "server": server.address.bind, "sockets": sockets}
        nginx = nginx_with(SITE % values, "www-data")
        with Process(need_tool(nginx.executable), *nginx.arguments, address=listen, files=nginx.files) as front:
            for path, phrase in PHRASES.items():
                with pytest.raises(urllib.error.HTTPError) as caught:
                    urllib.request.urlopen(listen.url + path, timeout=30)
                with caught.value:
                    assert caught.value.code == 502, path
                said = front.log
                for name in ("missing", "denied"):
                    said = said.replace(f"{sockets}/{name}.sock:", "/run/shop/tailrace.sock")
                    said = said.replace(f"{sockets}/{name}.sock", "/run/shop/tailrace.sock")
                assert phrase in said, said
        server.logged("was killed by SIGKILL")


def test_the_table_has_these_phrases():
    assert [row[0] for row in rows(DOCS / "troubleshooting.md", "nginx")] == [f"`{each}`" for each in PHRASES.values()]
