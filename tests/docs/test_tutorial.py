"""The tutorial's files and commands, followed to its end: Flask and Django behind nginx.

Paths and addresses are those of the test.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from frameworks.process import Process
from harness.addresses import Address, free_address
from harness.fronts import nginx_with
from harness.pages import DOCS, blocks
from harness.tools import need_module, need_tool

PAGE = DOCS / "tutorial.md"


@pytest.fixture
def machine():
    """What takes the place of the root directory; a short path, since UNIX sockets have room for 107 bytes."""
    root = Path(tempfile.mkdtemp(prefix="pst-"))
    yield root
    shutil.rmtree(root)


def file(name):
    """The text of the file with this title."""
    (found,) = [block.text for block in blocks(PAGE) if block.title == name]
    return found


def of_service(name, path):
    """The file that a service has in place of that of `shop`: the page makes it with sed."""
    text = file(path)
    if name == "shop":
        return text
    lines = [line.partition(" | ")[0] for block in blocks(PAGE) for line in block.text.splitlines()]
    (words,) = [shlex.split(line)[1:] for line in lines if line.startswith("$ sed ") and line.endswith(f" {path}")]
    made = subprocess.run(words[:-1], input=text, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "shop" not in made
    return made


def here(text, root):
    """With this machine's paths."""
    return re.sub(r"/(srv|run)/(?=shop|blog)", rf"{root}/\1/", text)


def get(address, host, path):
    """Status and body of a response."""
    request = urllib.request.Request(address.url + path, headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@contextlib.contextmanager
def deployed(name, root):
    """The service and the site of this name run; the address of nginx."""
    for folder in ("run", "srv"):
        (root / folder / name).mkdir(parents=True, exist_ok=True)
    (line,) = re.findall(r"^ExecStart=(.*)$", of_service(name, "/etc/systemd/system/shop.service"), re.MULTILINE)
    words = shlex.split(here(line, root))
    assert words[0] == f"{root}/srv/{name}/venv/bin/tailrace"
    socket = Address(path=f"{root}/run/{name}/tailrace.sock")
    front = free_address()
    site = here(of_service(name, "/etc/nginx/conf.d/shop.conf"), root).replace("listen 80;", f"listen {front.bind};")
    nginx = nginx_with(site)
    command = [sys.executable, "-m", "tailrace", *words[1:]]
    with Process(*command, address=socket, cwd=root / "srv" / name / "app") as server:
        assert Path(socket.path).stat().st_mode & 0o777 == 0o660
        with Process(need_tool(nginx.executable), *nginx.arguments, address=front, files=nginx.files) as proxy:
            yield front
            assert "error" not in proxy.log, proxy.log
        assert "ERROR" not in server.log, server.log


def test_the_flask_application_serves_behind_nginx(machine):
    need_module("flask")
    app = machine / "srv/shop/app"
    app.mkdir(parents=True)
    (app / "shop.py").write_text(file("/srv/shop/app/shop.py"))
    with deployed("shop", machine) as front:
        assert get(front, "shop.example", "/") == (200, b"Hello, 127.0.0.1!\n")


def test_the_django_project_serves_behind_nginx(machine):
    need_module("django")
    app = machine / "srv/blog/app"
    app.mkdir(parents=True)
    # From here on as the page says.
    run = [sys.executable, "-m", "django", "startproject", "blog", str(app)]
    subprocess.run(run, check=True, timeout=60)
    with (app / "blog/settings.py").open("a") as settings:
        settings.write(file("/srv/blog/app/blog/settings.py"))
    ours = [
        words[words.index("manage.py") :]
        for block in blocks(PAGE)
        for command in (block.commands if block.language == "console" else ())
        if "manage.py" in (words := shlex.split(command.line))
    ]
    assert [each[1] for each in ours] == ["migrate", "collectstatic", "createsuperuser"]
    # It asks for these.
    ours[-1] += ["--no-input", "--username", "owner", "--email", "owner@blog.example"]
    environment = os.environ | {"DJANGO_SUPERUSER_PASSWORD": "four long words here"}
    for each in ours:
        command = [sys.executable, *each]
        subprocess.run(command, cwd=app, env=environment, check=True, timeout=120, capture_output=True)
    with deployed("blog", machine) as front:
        status, body = get(front, "blog.example", "/admin/login/")
        assert (status, b"Django" in body) == (200, True)
        assert get(front, "blog.example", "/static/admin/css/base.css")[0] == 200
        assert get(front, "blog.example", "/")[0] == 404
