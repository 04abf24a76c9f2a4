"""One of several nodes behind a load balancer: tells its process id, or after a moment its name, answers numbers, and
waits when it is told to.

STATE names a directory: while it has a file `slow`, loading waits. NODE is the name.
"""

import os
import time
import urllib.parse
from pathlib import Path

STATE = Path(os.environ.get("STATE", "/nonexistent"))
while (STATE / "slow").exists():
    time.sleep(0.01)


def app(environ, start_response):
    path = environ["PATH_INFO"][1:]
    if path == "who":
        body = b"%d" % os.getpid()
    elif path == "node":
        time.sleep(0.02)
        body = os.environ["NODE"].encode()
    elif path == "wait":
        query = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"]))
        Path(query["entered"]).touch()
        while not Path(query["gate"]).exists():
            time.sleep(0.01)
        body = b"waited"
    else:
        # What harness.operated.Checking asks for.
        body = b"%d." % int(path) * (1 + int(path) % 7 * 997)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
