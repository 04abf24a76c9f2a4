"""`--reload`: the next request after a save is served by the new code, or shows why it does not load."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest
from harness.operated import Operated, operating

APP = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))])
    return [BODY]
"""


def save(path, text):
    """As editors do: the new text is there all at once."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def write(directory, body):
    save(directory / "app.py", f"{APP}\nBODY = {body!r}\n")


@pytest.fixture
def developed(tmp_path):
    write(tmp_path, b"one")

    @contextlib.contextmanager
    def start(*arguments):
        with operating(tmp_path, "app:app", "--reload", *arguments) as server:
            server.logged("watching the files in")
            yield server

    return start


def answers(server, *parts):
    """Returns the answer once it has all of these parts."""
    found = []

    def asked():
        found[:] = [server.get("/", "Accept: text/html")]
        return all(part in found[0].body for part in parts)

    server.until(asked, f"{parts} in the answer")
    return found[0]


def test_a_change_is_served_and_errors_are_shown_until_the_next_save(developed, tmp_path):
    with developed() as server:
        assert server.get().body == b"one"
        write(tmp_path, b"two")
        assert answers(server, b"two").status == 200
        server.logged("reload complete")

        save(tmp_path / "app.py", "def app(:\n    <b>\n")
        assert answers(server, b"SyntaxError: invalid syntax", b"def app(:").status == 500
        assert "def app(:" in server.log

        save(tmp_path / "app.py", "import absent_module_of_this_test\n")
        assert answers(server, b"No module named &#x27;absent_module_of_this_test&#x27;").status == 500
        assert server.log.count("reload complete") == 1, "what does not load is no complete reload"

        write(tmp_path, b"three")
        assert answers(server, b"three").status == 200
        assert server.stop() == 0


def test_an_application_that_does_not_load_at_first_is_shown_too(developed, tmp_path):
    save(tmp_path / "app.py", "1 / 0\n")
    with developed() as server:
        assert b"ZeroDivisionError" in server.get().body
        write(tmp_path, b"fixed")
        answers(server, b"fixed")


def test_a_request_after_the_save_waits_for_the_new_code(developed, tmp_path):
    with developed() as server:
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        save(tmp_path / "app.py", f"open('gate').read()\n{APP}\nBODY = b'two'\n")
        got = []
        with gate.open("wb"):
            # The new worker loads; the old one is gone.
            server.logged("has ended")
            client = threading.Thread(target=lambda: got.append(server.get().body))
            client.start()
        client.join(30)
        assert got == [b"two"]


TEMPLATE_APP = """
import jinja2

PAGES = jinja2.Environment(loader=jinja2.FileSystemLoader("pages"), auto_reload=False)

def app(environ, start_response):
    body = PAGES.get_template("shop/cart.html").render(word="cart").encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"""


@pytest.mark.parametrize("glob", ["pages", "pages/**/*.html", "**/*.html", "pages/shop/cart.html"])
def test_a_template_that_is_included_is_watched_like_code(developed, tmp_path, glob):
    (tmp_path / "pages" / "shop").mkdir(parents=True)
    save(tmp_path / "pages" / "shop" / "cart.html", "the {{ word }} of yesterday")
    save(tmp_path / "app.py", TEMPLATE_APP)
    with developed("--reload-include", "absent.toml", "--reload-include", glob) as server:
        assert server.get().body == b"the cart of yesterday"
        (tmp_path / "notes.txt").write_text("not included")
        save(tmp_path / "pages" / "shop" / "cart.html", "the {{ word }} of today")
        answers(server, b"the cart of today")
        assert "changed: pages/shop/cart.html" in server.log
        assert "notes.txt" not in server.log
        assert server.stop() == 0


def test_files_and_modules_elsewhere_are_watched_and_excluded_ones_are_not(tmp_path):
    for name in ("work/tests", "texts", "library"):
        (tmp_path / name).mkdir(parents=True)
    work, texts, library = (tmp_path / name for name in ("work", "texts", "library"))
    save(texts / "words.txt", "old")
    save(library / "words.py", "WORD = b' word'\n")
    save(work / "app.py", f"{APP}\nfrom words import WORD\nBODY = open('../texts/words.txt', 'rb').read() + WORD\n")
    # In the settings file, too.
    (work / "tailrace.toml").write_text('reload_include = ["../texts/*.txt", "!tests"]\n')
    with Operated(work, "app:app", "--reload", environment={"PYTHONPATH": str(library)}) as server:
        server.serves().logged(f"watching the files in {library}, {texts}, {work}")
        assert server.get().body == b"old word"
        save(work / "tests" / "test_app.py", "")
        save(texts / "words.txt", "new")
        answers(server, b"new word")
        assert f"changed: {os.path.relpath(texts / 'words.txt', work)}; loading" in server.log
        save(library / "words.py", "WORD = b' module'\n")
        answers(server, b"new module")
        assert "test_app.py" not in server.log


def test_a_failing_hook_of_the_worker_is_shown(developed, tmp_path):
    (tmp_path / "myhooks.py").write_text("def worker_start(worker):\n    raise OSError('no cache')\n")
    with developed("--hooks", "myhooks") as server:
        assert b"the hook myhooks.worker_start failed: OSError: no cache" in server.get().body


def test_the_debugger_works_and_the_next_save_ends_its_request(tmp_path):
    (tmp_path / "app.py").write_text(
        "import threading\n"
        "def app(environ, start_response):\n"
        "    word = 'before'\n"
        "    breakpoint()\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', str(len(word)))])\n"
        "    return [word.encode()]\n"
    )
    reader, writer = os.pipe()
    with Operated(tmp_path, "app:app", "--reload", "--debug", stdin=reader) as server:
        os.close(reader)
        server.serves().logged("watching the files in")
        got = []
        client = threading.Thread(target=lambda: got.append(server.get().body))
        client.start()
        os.write(writer, b"word = threading.current_thread().name\ncontinue\n")
        client.join(30)
        assert got == [b"MainThread"]
        write(tmp_path, b"two")
        # Whoever asks before the old worker has been told to end meets the breakpoint once more.
        server.logged("reload complete")
        assert server.get().body == b"two"
        os.killpg(server.process.pid, signal.SIGINT)
        server.process.wait(30)
        server.until(lambda: not server.processes(), "the end of all processes")
        assert server.process.returncode == 0
    os.close(writer)


@pytest.mark.parametrize(
    ("arguments", "said"), [((), "for up to 1 s;"), (("--graceful-timeout", "20"), "for up to 20 s;")]
)
def test_a_graceful_timeout_that_is_set_counts(developed, arguments, said):
    with developed(*arguments) as server:
        server.stop()
        assert f"SIGTERM: finishing the requests in flight, {said}" in server.log


@pytest.mark.parametrize(
    ("arguments", "source", "said"),
    [
        (
            ["--preload"],
            "",
            "--preload cannot be combined with --reload: each worker must load the application itself",
        ),
        ([], "import sys\nsys.modules['watchfiles'] = None\n", "pip install 'tailrace[reload]'"),
    ],
)
def test_reload_with_options_that_contradict_it_is_refused_in_one_line(tmp_path, arguments, source, said):
    write(tmp_path, b"")
    program = f"{source}\nimport sys\nsys.argv[0] = 'tailrace'\nfrom tailrace.command import main\nmain()\n"
    done = subprocess.run(
        [sys.executable, "-c", program, "app:app", "--reload", "--bind", "127.0.0.1:0", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
