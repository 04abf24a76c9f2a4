"""nginx as the floor for files: what one core delivers with sendfile and no application at all."""

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


def find() -> str | None:
    """Debian puts it into sbin, which is not on everyone's PATH."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")


def version() -> str | None:
    command = find()
    if command is None:
        return None
    told = subprocess.run([command, "-v"], capture_output=True, text=True, check=False).stderr
    number = re.search(r"nginx/(\S+)", told)
    return number.group(1) if number else "of unknown version"


def configure(state: Path, files: Path, host: str, port: int) -> None:
    """Writes nginx.conf into `state`. Its worker keeps the user that the benchmark has, who may read the files."""
    user = "user root;" if os.getuid() == 0 else ""
    text = CONFIGURATION.format(state=state, files=files, host=host, port=port, user=user)
    (state / "nginx.conf").write_text(text)
