"""Web servers before Tailrace, with the configurations of deploy/: what to run, and the files that it needs.

Whoever runs the command replaces "{directory}" in it and in the files by a directory of its own.
"""

import os
from typing import NamedTuple

from .addresses import Address
from .deployed import deployed

MODULES = "/usr/lib/apache2/modules"
IS_ROOT = os.geteuid() == 0

# Around the site, as nginx.conf is around the files of conf.d.
_NGINX = """
daemon off;
pid {directory}/pid;
error_log {directory}/error.log warn;
%(user)s
events { worker_connections 8192; }
worker_rlimit_nofile 20000;
http {
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/shop.conf;
}
"""
# As apache2.conf and the modules that `a2enmod` names.
_APACHE = """
ServerRoot {directory}
ServerName test
DefaultRuntimeDir {directory}
PidFile {directory}/pid
ErrorLog {directory}/error.log
LogLevel warn
%(user)s
%(modules)s
Listen %(listen)s
ListenBacklog 2048
KeepAlive On
MaxKeepAliveRequests 0
StartServers 1
ServerLimit 1
ThreadsPerChild 64
MaxRequestWorkers 64
Include {directory}/shop.conf
"""


class Upstream(NamedTuple):
    """Where Tailrace listens for the front, with which protocol, and where it answers checks."""

    protocol: str
    address: Address
    status: Address
    agent: Address


def bind(protocol: str, address: Address) -> str:
    """The value of `--bind` for a protocol: http, uwsgi, or proxy for HTTP behind a PROXY header. Every user may
    connect to a UNIX socket."""
    if protocol == "proxy":
        return f"http://{address.bind}?proxy=v2"
    return f"{protocol}+{address.bind}?mode=666" if address.path else f"{protocol}://{address.bind}"


class Front(NamedTuple):
    """A web server to run. executable: its name. arguments: those of the command line. statuses: how it may end."""

    executable: str
    arguments: tuple[str, ...]
    files: dict[str, str]
    statuses: tuple[int, ...] = (0,)


def nginx(listen: Address, upstream: Upstream, files: str = "/nonexistent/") -> Front:
    """files: the folder of those that the application names by X-Accel-Redirect."""
    is_http = upstream.protocol == "http"
    name = "nginx.conf" if is_http else "nginx-uwsgi.conf"
    written = "\n    server 127.0.0.1:8000;" if is_http else "\n    server unix:/run/shop/tailrace.sock;"
    changes = {written: f"\n    server {upstream.address.bind};", "listen 80 ": f"listen {listen.bind} "}
    changes["/srv/shop/protected/"] = files
    return nginx_with(deployed(name, changes))


def nginx_with(site: str, user: str = "root") -> Front:
    """site: its `server` blocks. user: whose its processes are, if the test runs as root."""
    statement = f"user {user};" if IS_ROOT else ""
    texts = {"nginx.conf": _NGINX.replace("%(user)s", statement), "shop.conf": site}
    return Front("nginx", ("-c", "{directory}/nginx.conf", "-p", "{directory}/", "-e", "{directory}/error.log"), texts)


def haproxy(listen: Address, *nodes: Upstream) -> Front:
    """Before two nodes; one that is given alone is both."""
    both = (*nodes, *nodes)[:2]
    changes = {"/run/haproxy/admin.sock": "{directory}/admin", "bind :80": f"bind {listen.bind}"}
    # Within the limit of open files of most machines.
    changes["maxconn 20000"] = "maxconn 4000"
    over_unix = bool(nodes[0].address.path)
    sends = " send-proxy-v2" if nodes[0].protocol == "proxy" else ""
    for number, (node, name) in enumerate(zip(both, ("one", "two"), strict=True), 1):
        if over_unix:
            changes[f"unix@/run/shop/{name}.sock agent-port 900{number}"] = (
                f"unix@{node.address.path} agent-port {node.agent.port}"
            )
        else:
            checks = "check port {} agent-check agent-port {}".format
            changes[f"10.0.0.1{number}:8000{sends} {checks(9000, 9001)}"] = (
                f"{node.address.bind}{sends} {checks(node.status.port, node.agent.port)}"
            )
    text = deployed("haproxy-unix.cfg" if over_unix else f"haproxy{sends and '-proxy'}.cfg", changes)
    # HAProxy ends as SIGTERM asks, and says so in one way or the other.
    return Front("haproxy", ("-db", "-f", "{directory}/haproxy.cfg"), {"haproxy.cfg": text}, (0, 143, -15))


def apache(listen: Address, upstream: Upstream) -> Front:
    """Its children are www-data when it is started by root: they must be able to reach a UNIX socket."""
    is_http, path = upstream.protocol == "http", upstream.address.path
    protocol = upstream.protocol
    target = f"unix:{path}|{protocol}://tailrace/" if path else f"{protocol}://{upstream.address.bind}/"
    name = "apache.conf" if is_http else "apache-uwsgi.conf"
    written = "http://127.0.0.1:8000/" if is_http else "unix:/run/shop/tailrace.sock|uwsgi://tailrace/"
    site = deployed(name, {"*:80": listen.bind, f"ProxyPass / {written} ": f"ProxyPass / {target} "})
    modules = ("mpm_event", "authz_core", "headers", "proxy", "proxy_http" if is_http else "proxy_uwsgi")
    lines = "\n".join(f"LoadModule {each}_module {MODULES}/mod_{each}.so" for each in modules)
    text = _APACHE.replace("%(user)s", "User www-data" if IS_ROOT else "").replace("%(modules)s", lines)
    text = text.replace("%(listen)s", listen.bind)
    return Front(
        "apache2", ("-D", "FOREGROUND", "-f", "{directory}/apache.conf"), {"apache.conf": text, "shop.conf": site}
    )
