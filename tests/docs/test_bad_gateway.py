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
from harness.pages import DOCS, rows
from harness.server import Server
from harness.tools import need_tool

CONFIG = """
daemon off;
pid {directory}/pid;
error_log {directory}/error.log;
%(user)s
events { worker_connections 64; }
http {
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {
        listen %(listen)s;
        location /refused { proxy_pass http://%(closed)s; }
        location /missing { proxy_pass http://unix:%(sockets)s/missing.sock; }
        location /denied { proxy_pass http://unix:%(sockets)s/denied.sock; }
        location / { proxy_pass http://%(server)s; }
    }
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
        config = CONFIG
        values = {"listen": listen.bind, "closed": closed.bind, "server": server.address.bind, "sockets": str(sockets)}
        for key, text in {**values, "user": "user www-data;"}.items():
            config = config.replace(f"%({key})s", text)
        nginx = (need_tool("nginx"), "-c", "{directory}/nginx.conf", "-p", "{directory}/")
        with Process(*nginx, "-e", "{directory}/error.log", address=listen, files={"nginx.conf": config}) as front:
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
