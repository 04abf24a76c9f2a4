"""The guide for Django, followed from its first command to its last in a new project."""

import shlex
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from frameworks.process import Process
from harness.addresses import free_address
from harness.pages import DOCS, blocks
from harness.tools import need_module

PAGE = DOCS / "guides/django.md"
DEADLINE = 120
STYLE = "/static/admin/css/base.css"
URLS = """
from django.contrib import admin
from django.urls import path


def fail(request):
    raise ValueError("a failure of the view")


urlpatterns = [path("fail", fail), path("admin/", admin.site.urls)]
"""


def get(server, path):
    """The status of a response."""
    request = urllib.request.Request(server.url + path, headers={"Host": "localhost"})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture
def site(tmp_path):
    need_module("django")
    need_module("django_prodserver")
    command = [sys.executable, "-m", "django", "startproject", "mysite", str(tmp_path)]
    subprocess.run(command, check=True, timeout=DEADLINE)
    (tmp_path / "mysite/urls.py").write_text(URLS)
    return tmp_path


def serving(words, site):
    """The server that a command starts, at a free address."""
    address = free_address()
    if words[:3] == ["python", "manage.py", "runserver"]:
        words = [*words, address.bind]
    elif "--bind" in words:
        words = [address.bind if word == ":8000" else word for word in words]
    else:
        words = [*words, "--bind", address.bind]
    words = words[1:] if words[0] == "python" else ["-m", *words]
    return Process(sys.executable, *words, address=address, cwd=site)


def test_the_guide_can_be_followed(site):
    followed = []
    for block in blocks(PAGE):
        if block.title == "settings.py":
            with (site / "mysite/settings.py").open("a") as settings:
                settings.write(block.text.replace(":8000", "127.0.0.1:0"))
        for command in block.commands if block.language == "console" else ():
            words = shlex.split(command.line)
            followed.append(next(word for word in words if word not in ("python", "manage.py")))
            if followed[-1] == "collectstatic":
                done = [sys.executable, *words[1:]]
                subprocess.run(done, cwd=site, check=True, timeout=DEADLINE, capture_output=True)
                continue
            with serving(words, site) as server:
                assert (get(server, STYLE), get(server, "/admin/login/"), get(server, "/none")) == (200, 200, 404)
    assert followed == ["runserver", "collectstatic", "tailrace", "tailrace"]
    # With all settings of the page.
    with serving(["tailrace", "mysite.wsgi"], site) as server:
        assert get(server, "/fail") == 500
        assert server.log.count("ValueError: a failure of the view") == 1


def test_prodserver_starts_tailrace_as_the_guide_shows(site):
    address = free_address()
    (text,) = [block.text for block in blocks(PAGE) if "PRODUCTION_PROCESSES" in block.text]
    (site / "staticfiles").mkdir()
    with (site / "mysite/settings.py").open("a") as settings:
        settings.write(text.replace(":8000", address.bind))
    with Process(sys.executable, "manage.py", "server", address=address, cwd=site) as server:
        assert get(server, "/none") == 404
