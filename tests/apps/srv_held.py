"""An application whose responses are held: the query says how, and what is published.

`/fields?NAME=VALUE&body=...` answers with exactly these header fields, and `body` once for each block of the body.
`/hold/a/b` answers with those of `tailrace.hold("a", "b")`, and more of them by the query.
"""

import io
import json
import os
import urllib.parse

import tailrace

INSTRUCTIONS = ("Grip-Hold", "stream")


def application(environ, start_response):
    path = environ["PATH_INFO"]
    pairs = urllib.parse.parse_qsl(environ["QUERY_STRING"], keep_blank_values=True, encoding="latin-1")
    query = dict(pairs)
    body = [value.encode("latin-1") for name, value in pairs if name == "body"]
    fields = [(name, value) for name, value in pairs if name not in ("body", "status", "size", "count")]
    if path == "/fields":
        start_response(query.get("status", "200 OK"), fields)
        return body
    if path.startswith("/hold/"):
        names = path.removeprefix("/hold/").split("/")
        start_response("200 OK", [("Content-Type", "text/event-stream"), *tailrace.hold(*names).items()])
        return body or [b": open\n\n"]
    if path.startswith("/poll/"):
        timeout = float(query["timeout"]) if "timeout" in query else None
        last_ids = {name: value for name, value in pairs if name != "timeout"}
        held = tailrace.hold(path.removeprefix("/poll/"), mode="response", timeout=timeout, last_ids=last_ids)
        received = environ["wsgi.input"].read()
        start_response("200 OK", [("Content-Type", "text/plain"), *held.items()])
        return [b"nothing new, " + received]
    if path.startswith("/from/"):
        # What the application's storage has is in the response, and the id of the last one in its instructions.
        names = path.removeprefix("/from/").split("/")
        held = tailrace.hold(*names, last_ids=query)
        start_response("200 OK", [("Content-Type", "text/event-stream"), *held.items()])
        return [b": stored\n\n"]
    if path.startswith("/publish/"):
        # Several at once, numbered from `first`.
        channel, first = path.removeprefix("/publish/"), int(query.get("first", "0"))
        for number in range(first, first + int(query.get("count", "1"))):
            data = query.get("data", str(number))
            tailrace.publish(channel, data, id=query.get("id"), event=query.get("event"))
        return answer(start_response, os.getpid())
    if path.startswith("/publish-forked/"):
        child = os.fork()
        if child == 0:
            tailrace.publish(path.removeprefix("/publish-forked/"), "from a child")
            os._exit(0)
        return answer(start_response, os.waitpid(child, 0)[1])
    if path == "/publish-to":
        try:
            return answer(start_response, tailrace.publish("a", "x", to=query["to"]))
        except tailrace.PublishError as error:
            return answer(start_response, f"refused: {error}")
    if path == "/raises":
        start_response("200 OK", held_fields("a"))
        return raising()
    if path == "/written":
        write = start_response("200 OK", held_fields("a"))
        write(b"written, ")
        return [b"returned"]
    if path in ("/large", "/large-poll"):
        more = [("Grip-Hold", "response"), ("Grip-Timeout", "1")] if path == "/large-poll" else []
        start_response("200 OK", [*held_fields("a"), *more])
        return (b"x" * 100_000 for _ in range(0, int(query["size"]), 100_000))
    if path == "/file":
        start_response("200 OK", held_fields("a"))
        return environ["wsgi.file_wrapper"](open(__file__, "rb"))
    if path == "/bytes":
        start_response("200 OK", held_fields("a"))
        return environ["wsgi.file_wrapper"](io.BytesIO(b"of a file without a descriptor"))
    if path == "/environ":
        return answer(start_response, sorted(name for name in environ if "GRIP" in name.upper()))
    return answer(start_response, os.getpid())


def held_fields(channel):
    return [("Content-Type", "text/plain"), INSTRUCTIONS, ("Grip-Channel", channel)]


def raising():
    yield b"this is not sent"
    raise ValueError("in the middle of a held response")


def answer(start_response, value):
    body = json.dumps(value).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
