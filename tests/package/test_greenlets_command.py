"""What the command says of greenlets before it serves."""

import pytest


@pytest.fixture
def pong(tmp_path):
    (tmp_path / "pong.py").write_text(
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', '4')])\n"
        "    return [b'pong']\n"
    )
    return tmp_path


@pytest.mark.parametrize("other", ["--debug", "--preload"])
def test_what_cannot_go_together_ends_with_one_line(pong, command, other):
    server = command("pong", "--gevent", other, "--bind", "127.0.0.1:0")
    assert server.end() == 2
    [line] = server.seen
    assert line.startswith(f"penstock: error: {other} ")
    assert line.endswith(": leave one out\n")


def test_an_application_that_patches_itself_is_shown_the_way(pong, command):
    (pong / "patches.py").write_text("import gevent.monkey\ngevent.monkey.patch_all()\nfrom pong import app\n")
    server = command("patches", "--bind", "127.0.0.1:0")
    assert server.end() == 2
    assert server.seen[-1] == (
        "penstock: error: the standard library has been patched for gevent, so the server's threads would be greenlets "
        "and never run: start with --gevent (in a program of your own: penstock.gevent.serve)\n"
    )


def test_limits_of_greenlets_without_greenlets_are_said_to_have_no_effect(pong, command):
    server = command("pong", "--max-greenlets", "5", "--bind", "127.0.0.1:0")
    server.until("WARNING: --max-greenlets has no effect without --gevent$")
    server.address()


def test_the_signal_for_greenlets_does_no_harm_without_them(pong, command):
    import signal

    server = command("pong", "--bind", "127.0.0.1:0")
    server.until("ready in")
    server.process.send_signal(signal.SIGURG)
    server.until("SIGURG: only --gevent has greenlets to write down")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
