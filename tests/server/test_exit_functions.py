"""Each worker runs, when it exits, the `atexit` functions that were registered before the fork, as instrumentation
agents do."""

import signal

import pytest
from harness.operated import Operated

# An agent that is set up when Python starts, and keeps unsent data until the process exits.
AGENT = """
import atexit, logging, os
SPANS = []
def flush():
    with open(os.environ["SPANS"], "a") as file:
        file.writelines(f"{os.getpid()} {each}\\n" for each in SPANS)
    logging.getLogger("tailrace").warning("process %d has sent %d spans", os.getpid(), len(SPANS))
    SPANS.clear()
atexit.register(flush)
os.register_at_fork(after_in_child=SPANS.clear)
"""
APP = """
import sitecustomize
def app(environ, start_response):
    sitecustomize.SPANS.append(environ["PATH_INFO"])
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""
MODES = {"threads": (), "preload": ("--preload",), "greenlets": ("--gevent",), "debug": ("--debug",)}


@pytest.mark.parametrize("mode", MODES)
def test_what_an_agent_has_not_sent_is_sent_when_a_worker_ends(tmp_path, mode):
    (tmp_path / "sitecustomize.py").write_text(AGENT)
    (tmp_path / "app.py").write_text(APP)
    spans = tmp_path / "spans"
    spans.touch()
    environment = {"PYTHONPATH": str(tmp_path), "SPANS": str(spans)}
    limits = () if mode == "debug" else ("--max-requests", "10")
    with Operated(tmp_path, "app:app", *MODES[mode], *limits, environment=environment) as server:
        server.logged("listening on" if mode == "debug" else "ready in")
        for number in range(25):
            server.get(f"/{number}")
            if number == 12 and mode != "debug":
                server.logged("has ended")
        if mode != "debug":
            server.tell(signal.SIGHUP)
            server.replaced()
            server.get("/after")
        assert server.stop() == 0
        sent = [line.split() for line in spans.read_text().splitlines()]
        expected = [f"/{number}" for number in range(25)] + ["/after"] * (mode != "debug")
        assert sorted(path for _, path in sent) == sorted(expected)
        # The log also has what they log.
        assert all(f"process {pid} has sent" in server.log for pid, _ in sent)
        assert mode == "debug" or len({pid for pid, _ in sent}) >= 3
