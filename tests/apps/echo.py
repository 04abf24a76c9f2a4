"""Responds with the request: environ as JSON, and the body as latin-1 text under "body"."""

import json


def app(environ, start_response):
    try:
        body = environ["wsgi.input"].read()
    except OSError:
        body = b"<broken>"
    seen = {key: value for key, value in environ.items() if isinstance(value, (str, int, bool))}
    seen["body"] = body.decode("latin-1")
    text = json.dumps(seen).encode()
    path = (
        environ["PATH_INFO"].encode("latin-1", "replace").decode("ascii", "replace").replace("\r", "").replace("\n", "")
    )
    path = "".join(letter if " " < letter < "\x7f" else "?" for letter in path)
    start_response(
        "200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(text))), ("X-Path", path or "-")]
    )
    return [text]
