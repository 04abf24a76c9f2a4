"""nginx as the floor for files, which is what one core delivers with sendfile and no application; and nginx in front of
a server that speaks the uwsgi protocol."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

CONFIGURATION = """
worker_processes 1;
daemon off;
pid {state}/nginx.pid;
error_log stderr warn;
{user}
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000;
    open_file_cache max=100 inactive=600s;
    open_file_cache_valid 600s;
    default_type application/octet-stream;
    client_body_temp_path {state}/body;
    proxy_temp_path {state}/proxy;
    fastcgi_temp_path {state}/fastcgi;
    uwsgi_temp_path {state}/uwsgi;
    scgi_temp_path {state}/scgi;
    server {{
        listen {host}:{port} backlog=1024;
        root {files};
        location = /ready {{ return 200 "ready"; }}
    }}
}}
"""

# The parameters are those of nginx's own uwsgi_params.
FRONT = """
worker_processes {workers};
daemon off;
pid {state}/nginx.pid;
error_log stderr warn;
{user}
events {{ worker_connections 20000; }}
http {{
    access_log off;
    client_max_body_size 100m;
    client_body_temp_path {state}/body;
    proxy_temp_path {state}/proxy;
    fastcgi_temp_path {state}/fastcgi;
    uwsgi_temp_path {state}/uwsgi;
    scgi_temp_path {state}/scgi;
    server {{
        listen {host}:{port} backlog=1024;
        location / {{
            uwsgi_pass unix:{state}/front.sock;
            uwsgi_param QUERY_STRING $query_string;
            uwsgi_param REQUEST_METHOD $request_method;
            uwsgi_param CONTENT_TYPE $content_type;
            uwsgi_param CONTENT_LENGTH $content_length;
            uwsgi_param REQUEST_URI $request_uri;
            uwsgi_param PATH_INFO $document_uri;
            uwsgi_param DOCUMENT_ROOT $document_root;
            uwsgi_param SERVER_PROTOCOL $server_protocol;
            uwsgi_param REQUEST_SCHEME $scheme;
            uwsgi_param HTTPS $https if_not_empty;
            uwsgi_param REMOTE_ADDR $remote_addr;
            uwsgi_param REMOTE_PORT $remote_port;
            uwsgi_param SERVER_PORT $server_port;
            uwsgi_param SERVER_NAME $server_name;
        }}
    }}
}}
"""


def find() -> str | None:
    """Debian puts it into sbin, which is not on everyone's PATH."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")


def version() -> str | None:
    command = find()
    if command is None:
        return None
    told = subprocess.run([command, "-v"], capture_output=True, text=True, check=False).stderr
    number = re.search(r"nginx/(\S+)", told)
    return number.group(1) if number else "unknown version"


def configure(state: Path, files: Path, host: str, port: int) -> None:
    """Writes nginx.conf into `state`. Its worker keeps the user that the benchmark has, who may read the files."""
    user = "user root;" if os.getuid() == 0 else ""
    text = CONFIGURATION.format(state=state, files=files, host=host, port=port, user=user)
    (state / "nginx.conf").write_text(text)


def configure_front(state: Path, host: str, port: int, workers: int) -> None:
    """Writes front.conf into `state`: nginx in front of a uwsgi socket there."""
    user = "user root;" if os.getuid() == 0 else ""
    (state / "front.conf").write_text(FRONT.format(state=state, host=host, port=port, user=user, workers=workers))
