"""Responds late, and says on standard error when it begins: /sleep sleeps, /hold keeps the interpreter for minutes,
/wait waits for the file GO, all else responds at once."""

import os
import sys
import time


def app(environ, start_response):
    path = environ["PATH_INFO"]
    print(f"begins {path}", file=sys.stderr, flush=True)
    if path == "/sleep":
        time.sleep(600)
    elif path == "/hold":
        # One call of C, which never gives the interpreter to another thread.
        sum(range(10**11))
    elif path == "/wait":
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.01)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"awake"]
