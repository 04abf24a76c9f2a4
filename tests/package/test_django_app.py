"""The Django app: `manage.py runserver` and `manage.py tailrace` of a project as `startproject` makes it."""

import contextlib
import inspect
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from frameworks.process import Process
from harness.addresses import free_address
from harness.server import await_listening
from harness.tools import need_module

need_module("django")

DEADLINE = 60.0
STYLE = "/static/admin/css/base.css"
WAITING_REQUEST = b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n"
URLS = """
import threading

from django.contrib import admin
from django.http import HttpResponse
from django.urls import path

from mysite.words import WORD


def index(request):
    return HttpResponse(f"{WORD} {request.META['SERVER_SOFTWARE']} {request.META['wsgi.multithread']}")


def wait(request):
    print("a request waits", flush=True)
    threading.Event().wait()


urlpatterns = [path("", index), path("wait", wait), path("admin/", admin.site.urls)]
"""


def run(*command, cwd, **environment):
    """The finished process."""
    environment = {**os.environ, "DJANGO_COLORS": "nocolor", **environment}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A new project with the app, pages and the tables of its database."""
    site = tmp_path_factory.mktemp("django") / "site"
    site.mkdir()
    assert run(sys.executable, "-m", "django", "startproject", "mysite", ".", cwd=site).returncode == 0
    (site / "mysite/urls.py").write_text(URLS)
    # Imported by settings, as the code of apps is: before a management command runs.
    (site / "mysite/words.py").write_text('WORD = "first"\n')
    append(site, 'from mysite import words\nINSTALLED_APPS.insert(0, "tailrace.django")\n')
    made = run(sys.executable, "manage.py", "migrate", cwd=site)
    assert made.returncode == 0, made.stderr
    return site


@pytest.fixture
def site(template, tmp_path):
    """The directory of a project."""
    return shutil.copytree(template, tmp_path / "site", ignore=shutil.ignore_patterns("__pycache__"))


def append(site, lines):
    with (site / "mysite/settings.py").open("a") as settings:
        settings.write(lines)


def manage(site, *arguments, **environment):
    return run(sys.executable, str(site / "manage.py"), *arguments, cwd=site, **environment)


def runserver(site, *options, **given):
    address = free_address()
    return Process(
        *(sys.executable, "manage.py", "runserver", address.bind, *options),
        address=address,
        cwd=site,
        environment={"PYTHONUNBUFFERED": "1"},
        **given,
    )


def get(server, path="/"):
    """Status and text of a response."""
    try:
        with urllib.request.urlopen(server.url + path, timeout=DEADLINE) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def await_that(condition, again=lambda: None):
    """Waits until a condition is true. again: called every other second."""
    end, next_call = time.monotonic() + DEADLINE, time.monotonic()
    while not condition():
        now = time.monotonic()
        if now > end:
            pytest.fail(f"did not become true: {inspect.getsource(condition).strip()}")
        if now > next_call:
            next_call = now + 2
            again()
        time.sleep(0.05)


def shows(server, word):
    """Whether the index has this word. False while nothing listens."""
    try:
        return get(server)[1].startswith(word)
    except OSError:
        return False


def test_importing_tailrace_does_not_import_django(tmp_path):
    code = "import sys, tailrace, tailrace.command, tailrace.embed.run; print('django' in sys.modules)"
    assert run(sys.executable, "-c", code, cwd=tmp_path).stdout == "False\n"


# runserver


def test_runserver_serves_pages_and_static_files_with_tailrace(site):
    with runserver(site, "--noreload") as server:
        status, text = get(server)
        assert (status, re.sub(r"/\S+", "", text)) == (200, "first tailrace True")
        status, style = get(server, STYLE)
        assert (status, "--primary" in style) == (200, True)
        assert get(server, "/none")[0] == 404
        line = rf'\[.+\] "GET {STYLE} HTTP/1\.1" 200 {len(style.encode())}\n'
        await_that(lambda: re.search(line, server.log))
        await_that(lambda: re.search(r'\] "GET /none HTTP/1\.1" 404 \d+\n', server.log))
        assert f"Starting development server at {server.url}/\n" in server.log
        # The server's own lines, which would repeat that.
        assert "listening on" not in server.log


def test_runserver_takes_the_options_of_django(site):
    with runserver(site, "--noreload", "--nothreading", "--nostatic", "--skip-checks") as server:
        assert get(server)[1].endswith(" False")
        assert get(server, STYLE)[0] == 404
        assert "system checks" not in server.log


def test_runserver_reloads_changed_code_while_a_request_runs(site):
    words = site / "mysite/words.py"
    with runserver(site) as server:
        assert shows(server, "first")
        with server.address.connect() as client:
            client.sendall(WAITING_REQUEST)
            await_that(lambda: "a request waits" in server.log)
            words.write_text('WORD = "second"\n')
            # Again and again: the autoreloader does not notice what has changed before its first look at the files.
            await_that(lambda: shows(server, "second"), again=words.touch)


@pytest.mark.parametrize("options", [[], ["--noreload"]], ids=["autoreload", "noreload"])
def test_ctrl_c_ends_runserver_while_a_request_runs(site, options):
    address, log = free_address(), site / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "runserver", address.bind, *options],
            cwd=site,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            # A shell lets its background jobs ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        await_listening(process, address, log.read_text, DEADLINE)
        with address.connect() as client:
            client.sendall(WAITING_REQUEST)
            await_that(lambda: "a request waits" in log.read_text())
            # As a terminal does: to the autoreloader and to the process that serves.
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(DEADLINE) == 0, log.read_text()
        assert not re.search("Fatal|panic|Traceback", log.read_text())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("options", [[], ["--noreload"]], ids=["autoreload", "noreload"])
def test_an_address_in_use_is_reported_as_by_django(site, options):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = manage(site, "runserver", port, "--skip-checks", *options)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "Error: That port is already in use.")


def test_runserver_works_without_staticfiles(site):
    append(site, 'INSTALLED_APPS.remove("django.contrib.staticfiles")\n')
    assert "--nostatic" not in manage(site, "runserver", "--help").stdout
    with runserver(site, "--noreload") as server:
        assert shows(server, "first tailrace/")


def test_runserver_is_extended_by_whitenoise_before_it(site):
    need_module("whitenoise")
    append(site, 'INSTALLED_APPS.insert(0, "whitenoise.runserver_nostatic")\n')
    with runserver(site, "--noreload") as server:
        assert shows(server, "first tailrace/")
        assert get(server, STYLE)[0] == 404


def test_a_check_finds_the_app_behind_staticfiles(site):
    assert "no issues" in manage(site, "check").stdout
    append(site, "INSTALLED_APPS.append(INSTALLED_APPS.pop(0))\n")
    said = manage(site, "check")
    assert (said.returncode, "(tailrace.W001)" in said.stderr) == (0, True)


# manage.py tailrace


def production(site, *options, cwd=None, **environment):
    address = free_address()
    return Process(
        *(sys.executable, str(site / "manage.py"), "tailrace", "--bind", address.bind, *options),
        address=address,
        cwd=cwd or site,
        environment=environment,
    )


def test_the_command_serves_with_its_options_and_stops_on_sigterm(site, tmp_path):
    """From another directory, as in a unit of systemd without WorkingDirectory=."""
    with production(site, "-w", "2", cwd=tmp_path) as server:
        assert shows(server, "first tailrace/")
        assert "serves mysite.wsgi:application with 2 workers" in server.log
    # `Process` has checked the status.


def test_a_reload_loads_what_the_command_had_imported(site):
    with production(site) as server:
        assert shows(server, "first")
        (site / "mysite/words.py").write_text('WORD = "second"\n')
        server.process.send_signal(signal.SIGHUP)
        await_that(lambda: shows(server, "second"))


def test_a_reload_follows_a_link_that_a_deploy_has_switched(site, tmp_path):
    current = tmp_path / "current"
    current.symlink_to(site)
    with production(current, cwd=tmp_path) as server:
        assert shows(server, "first")
        shutil.copytree(site, tmp_path / "next")
        (tmp_path / "next/mysite/words.py").write_text('WORD = "second"\n')
        current.unlink()
        current.symlink_to(tmp_path / "next")
        server.process.send_signal(signal.SIGHUP)
        await_that(lambda: shows(server, "second"))


def test_modules_of_the_current_directory_do_not_precede_those_of_the_project(site, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "mysite").mkdir(parents=True)
    (elsewhere / "mysite/__init__.py").write_text("raise SystemExit('not this one')\n")
    (elsewhere / "signal.py").write_text("raise SystemExit('not this one')\n")
    with production(site, cwd=elsewhere) as server:
        assert shows(server, "first")


def test_the_server_has_the_path_and_flags_of_manage(site, tmp_path):
    """As in projects that keep their applications in a folder, which they append to `sys.path`."""
    (site / "apps").mkdir()
    (site / "mysite/words.py").rename(site / "apps/words.py")
    urls, settings = site / "mysite/urls.py", site / "mysite/settings.py"
    urls.write_text(urls.read_text().replace("mysite.words", "words"))
    settings.write_text(settings.read_text().replace("from mysite import words", "import words"))
    manage_py = site / "manage.py"
    manage_py.write_text(
        f"import sys\nsys.path.append({str(site / 'apps')!r})\nassert sys.dont_write_bytecode\n{manage_py.read_text()}"
    )
    wsgi = site / "mysite/wsgi.py"
    wsgi.write_text(f"import sys\nassert sys.dont_write_bytecode\n{wsgi.read_text()}")
    address = free_address()
    command = (sys.executable, "-B", "manage.py", "tailrace", "--bind", address.bind)
    with Process(*command, address=address, cwd=site) as server:
        assert shows(server, "first")


def test_django_finds_settings_and_modules_by_its_own_options(site, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/others.py").write_text("from mysite.settings import *\nWSGI_APPLICATION = None\n")
    more = ["--settings", "others", f"--pythonpath={tmp_path / 'elsewhere'}"]
    with production(site, *more, "--threads=1", DJANGO_SETTINGS_MODULE="mysite.settings") as server:
        assert shows(server, "first")
        assert "serves django.core.wsgi:get_wsgi_application() with" in server.log


def test_help_is_that_of_the_server(site):
    shown = manage(site, "help", "tailrace").stdout
    assert shown.startswith("Usage: tailrace serve ")
    assert manage(site, "tailrace", "--help").stdout == shown
    wrong = manage(site, "tailrace", "--worker=2")
    assert (wrong.returncode, "did you mean --workers?" in wrong.stderr) == (2, True)


def test_prodserver_starts_the_server(site):
    need_module("django_prodserver")
    address = free_address()
    append(
        site,
        f"""
INSTALLED_APPS += ["django_prodserver"]
PRODUCTION_PROCESSES = {{
    "web": {{"BACKEND": "tailrace.django.prodserver.TailraceServer", "ARGS": {{"bind": "{address.bind}"}}}},
}}
""",
    )
    with Process(sys.executable, "manage.py", "server", "web", address=address, cwd=site) as server:
        assert shows(server, "first tailrace/")
