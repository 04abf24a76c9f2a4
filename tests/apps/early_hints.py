"""Sends 103 Early Hints, as an application for gunicorn does: it knows nothing of this server."""

import json
from urllib.parse import parse_qs

LINK = ("Link", "</style.css>; rel=preload; as=style")


def app(environ, start_response):
    asked = parse_qs(environ["QUERY_STRING"])
    hint = environ.get("wsgi.early_hints")
    raised = ""
    if hint:
        for number in range(int(asked.get("hints", ["1"])[0])):
            hint([LINK, ("X-Number", str(number) + "x" * int(asked.get("size", ["0"])[0]))])
        try:
            if "bad" in asked:
                hint(BAD[int(asked["bad"][0])])
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
    if "read" in asked:
        body = environ["wsgi.input"].read()
        hint([("X-Read", str(len(body)))])
    answer = json.dumps({"has": "wsgi.early_hints" in environ, "raised": raised}).encode()
    write = start_response("200 OK", [("Content-Type", "text/plain"), LINK])
    if "write" in asked:
        write(b"begun ")
        hint([("X-Late", "1")])
    return [answer]


BAD = [
    [("X-A", "a\r\nX-B: b")],
    [("X A", "a")],
    [("X-A", 1)],
    "X-A: a",
    [("X-A", "\u20ac")],
    [("X-A", "a", "b")],
    None,
    # Not passed on.
    [("Connection", "close"), ("Content-Length", "5"), ("Transfer-Encoding", "chunked"), ("X-Kept", "1")],
]
