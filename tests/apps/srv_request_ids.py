"""/own sets the field of the id, /fail raises, /wait?FILE answers when the file exists; others answer with the id."""

import time
from pathlib import Path


def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/fail":
        raise RuntimeError("it fails")
    if path == "/wait":
        while not Path(environ["QUERY_STRING"]).exists():
            time.sleep(0.01)
    own = [("X-Request-ID", "own")] if path == "/own" else []
    start_response("200 OK", [("Content-Type", "text/plain"), *own])
    return [environ.get("HTTP_X_REQUEST_ID", "").encode()]
