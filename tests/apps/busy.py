"""Responds late: /sleep sleeps, /nap for a second, /hold keeps the interpreter for minutes, all else responds at once."""

import time


def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/sleep":
        time.sleep(600)
    elif path == "/hold":
        # One call of C, which never gives the interpreter to another thread.
        sum(range(10**11))
    elif path == "/nap":
        time.sleep(1)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"awake"]
