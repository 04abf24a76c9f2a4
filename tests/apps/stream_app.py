"""Applications that read uploads, for servers with `--stream-body`; every other path is one of srv_shapes.py.

/sum answers with the length and hash of the body, read in blocks; with ?gate=G it first waits at that gate, with ?most=N
it leaves what follows the first N bytes. /back gives the body back as it comes.
/cost?by=N reads all, N bytes a read (-1: all at once), and tells how many bytes that gave and what processor time the
process took for it.
/raise reads all, and lets through what that raises. `echo` is the application of echo.py that lets it through, too.
"""

import hashlib
import io
import json
import time
from urllib.parse import parse_qs

from echo import app as echo_whole
from srv_shapes import answer, pass_gate


def app(environ, start_response):
    query = {key: values[-1] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
    stream = environ["wsgi.input"]
    what = environ["PATH_INFO"]
    if what == "/sum":
        if "gate" in query:
            pass_gate(query["gate"])
        size, got, most = 0, hashlib.sha256(), int(query.get("most", 1 << 60))
        while block := stream.read(min(65536, most - size)):
            size += len(block)
            got.update(block)
        text = json.dumps(f"{size} bytes {got.hexdigest()}").encode()
    elif what == "/cost":
        by, size, began = int(query["by"]), 0, time.process_time()
        while block := stream.read(by):
            size += len(block)
        text = json.dumps([size, time.process_time() - began]).encode()
    elif what == "/back":
        start_response("200 OK", [("Content-Type", "application/octet-stream")])
        return iter(lambda: stream.read1(65536), b"")
    elif what == "/raise":
        text = b"%d" % len(stream.read())
    else:
        return answer(environ, start_response)
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(text)))])
    return [text]


def echo(environ, start_response):
    environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read())
    return echo_whole(environ, start_response)
