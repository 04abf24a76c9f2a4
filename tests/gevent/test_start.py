"""The start with `--gevent`: what is patched when, what is refused, and what causes a warning."""

import json
import os
import signal
import subprocess
import sys
from textwrap import dedent

import pytest
from harness.greenlets import on_greenlets
from harness.operated import Operated, operating
from harness.programs import tailrace
from harness.server import Server

APP = """
import gevent.monkey, json, os, sys, time, threading
PATCHED = gevent.monkey.is_module_patched("socket") and gevent.monkey.is_module_patched("threading")
def app(environ, start_response):
    hub = gevent.get_hub()
    loop = type(hub.loop).__module__
    body = json.dumps({"patched": PATCHED, "loop": loop, "multithread": environ["wsgi.multithread"],
        "notes": os.environ.get("NOTES"), "thread": threading.current_thread() is threading.main_thread()}).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
"""

HIDING = """
import sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] == "gevent" else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "app.py").write_text(dedent(APP))
    return tmp_path


def failing(directory, *arguments, **variables):
    """Status and standard error of a command that must not serve."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TAILRACE_")}
    done = tailrace(*arguments, "--bind", "127.0.0.1:0", cwd=directory, env={**clean, **variables})
    return done.returncode, done.stderr


def told(server):
    return json.loads(server.get("/").body)


@pytest.mark.parametrize("before", ["", "from gevent import monkey\nmonkey.patch_all()\n"], ids=["once", "again"])
def test_everything_is_patched_before_the_application_is_imported(directory, before):
    (directory / "app.py").write_text(before + APP)
    with operating(directory, "app:app", "--gevent") as server:
        said = told(server)
        assert said["patched"] is True
        assert said["multithread"] is True
        server.stop()
        assert "MonkeyPatchWarning" not in server.log
        assert server.process.returncode == 0


def test_a_hook_after_the_fork_runs_patched_and_the_master_never_is(directory):
    # psycogreen's place is post_fork. Fails when the patch comes after it, or when the master is patched.
    (directory / "hooks.py").write_text(
        dedent("""
        import os, sys
        def on_start():
            print("on_start", "gevent" in sys.modules, flush=True)
        def post_fork(worker):
            import gevent.monkey
            os.environ["NOTES"] = str(gevent.monkey.is_module_patched("socket"))
        def on_exit():
            print("on_exit", "gevent" in sys.modules, flush=True)
        """)
    )
    with operating(directory, "app:app", "--gevent", "--hooks", "hooks") as server:
        assert told(server)["notes"] == "True"
        server.stop()
        assert "on_start False" in server.log
        assert "on_exit False" in server.log


def test_the_variable_of_gevent_chooses_the_loop_also_from_the_env_file(directory):
    # Fails when gevent is imported before the file is read, or when the wakeup works with one loop only.
    (directory / "variables").write_text("GEVENT_LOOP=libuv-cffi\n")
    with operating(directory, "app:app", "--gevent", "--env-file", "variables") as server:
        assert "libuv" in told(server)["loop"]
        for _ in range(20):
            assert server.get().status == 200


def test_what_was_imported_before_the_patch_is_warned_of(directory):
    (directory / "hooks.py").write_text("import ssl\n")
    with operating(directory, "app:app", "--gevent", "--hooks", "hooks") as server:
        assert len([line for line in server.log.splitlines() if "ssl" in line and "--hooks" in line]) == 1
        assert told(server)["patched"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--preload"], ["--preload", "--gevent", "unpatched"]), (["--debug"], ["--debug", "--gevent"])],
)
def test_contradicting_options_are_refused_in_one_line(directory, arguments, words):
    status, said = failing(directory, "app:app", "--gevent", *arguments)
    assert status == 2
    assert "Traceback" not in said
    assert all(word in said for word in words)


def test_without_gevent_installed_one_line_says_what_to_install(directory):
    # An interpreter that does not find it; fails when the workers fail one after the other instead.
    (directory / "sitecustomize.py").write_text(dedent(HIDING))
    path = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH", "")]))
    status, said = failing(directory, "app:app", "--gevent", PYTHONPATH=path)
    assert status == 2
    assert "pip install 'tailrace[gevent]'" in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1


def test_a_file_that_hides_gevent_is_named(directory):
    (directory / "gevent.py").touch()
    status, said = failing(directory, "app:app", "--gevent")
    assert status == 2
    assert str(directory / "gevent.py") in said
    assert "Traceback" not in said


def test_an_application_that_patches_itself_on_threads_is_told_of_gevent(directory):
    # The server's threads would be greenlets of a hub that does not run, so the server would hang.
    (directory / "patching.py").write_text("from gevent import monkey\nmonkey.patch_all()\n" + APP)
    status, said = failing(directory, "patching:app")
    assert status != 0
    assert "--gevent" in said
    assert "patching" not in said or "Traceback" not in said


def test_threads_have_no_effect_and_that_is_said():
    with on_greenlets("srv_shapes:app", threads=3) as server:
        assert server.get("/").body == b"pong"
        assert "--threads" in server.log


def test_greenlet_options_without_gevent_are_harmless():
    with Server("srv_shapes:app", max_greenlets=5) as server:
        assert server.get("/").body == b"pong"


def test_reload_serves_the_new_code_on_greenlets(directory):
    with Operated(directory, "app:app", "--gevent", "--reload") as server:
        server.serves().logged("watching the files in")
        assert told(server)["patched"] is True
        (directory / "new").write_text(APP.replace('"patched": PATCHED', '"patched": "again"'))
        (directory / "new").rename(directory / "app.py")
        server.until(lambda: b"again" in server.get().body, "the new code")
        assert server.stop() == 0


def test_a_reload_by_signal_patches_the_new_worker_too(directory):
    with operating(directory, "app:app", "--gevent") as server:
        for count in range(1, 3):
            server.tell(signal.SIGHUP)
            server.logged("reload complete", count)
            assert told(server)["patched"] is True
        assert server.stop() == 0


def test_the_limits_of_the_options_are_kept(directory):
    for arguments in (["--max-greenlets", "0"], ["--max-greenlets", "50001"]):
        status, said = failing(directory, "app:app", "--gevent", *arguments)
        assert status == 2
        assert arguments[0] in said


def test_run_cannot_patch_a_program_that_has_begun():
    script = "import tailrace\ndef app(e, s): pass\ntailrace.run(app, gevent=True)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False, cwd="/"
    )
    assert done.returncode != 0
    assert "tailrace.gevent.serve" in done.stderr
