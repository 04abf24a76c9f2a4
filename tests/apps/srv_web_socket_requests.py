"""Answers each request for a WebSocket without threads with the fields that it has from the holder, as a message."""

import json

EVENTS = "application/websocket-events"


def event(name, content=None):
    return f"{name}\r\n" if content is None else f"{name} {len(content):x}\r\n{content}\r\n"


def application(environ, start_response):
    fields = {name: value for name, value in environ.items() if name.startswith(("HTTP_META_", "HTTP_CONNECTION_ID"))}
    seen = event("TEXT", json.dumps(fields))
    opens = environ["wsgi.input"].read().startswith(b"OPEN\r\n")
    body = (event("OPEN") if opens else "") + seen
    start_response("200 OK", [("Content-Type", EVENTS), ("Set-Meta-User", "of-application")])
    return [body.encode()]
