"""Other servers under the same tests, to check the tests: TAILRACE_TEST_PEER=gunicorn python -m pytest tests/protocol

A case that every good peer fails deserves a second look before it is held against the server.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from .addresses import Address

PEER = os.environ.get("TAILRACE_TEST_PEER", "")


def peer_command(application: str, address: Address, threads: int, python: str = sys.executable) -> list[str]:
    """The command line that makes the peer serve `application`."""
    if PEER == "gunicorn":
        return [
            *(python, "-m", "gunicorn", "-k", "gthread", "--threads", str(threads)),
            *("--limit-request-line", "8190", "-b", address.bind, application),
        ]
    if PEER == "waitress":
        return [python, "-m", "waitress", f"--threads={threads}", f"--listen={address.bind}", application]
    if PEER == "granian":
        return [
            *(python, "-m", "granian", "--interface", "wsgi", "--blocking-threads", str(threads)),
            *("--host", address.host, "--port", str(address.port), application),
        ]
    raise RuntimeError(f"TAILRACE_TEST_PEER={PEER} is not known")


@contextlib.contextmanager
def peer_in_thread(application: Any) -> Iterator[str]:
    """waitress, the only peer that serves from a thread of this process."""
    from waitress.server import create_server

    server = create_server(application, host="127.0.0.1", port=0, threads=8, clear_untrusted_proxy_headers=False)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.effective_port}"
    finally:
        server.task_dispatcher.shutdown(timeout=1)
        server.trigger.pull_trigger(server.close)
        thread.join(5)
