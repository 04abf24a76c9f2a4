"""WebSockets without threads that echo, and are subscribed to a channel.

The query of a request may have `status` and `type`, the status and the media type that answer it, and `values=COUNT-SIZE`: so many values of so many
bytes are kept in the connection when it opens. The message "values?" is answered with the lengths of those that came
back, and "sockets?" with what the application could take a connection over by.
"""

import json
import urllib.parse

EVENTS = "application/websocket-events"
SUBSCRIBE = b'c:{"type": "subscribe", "channel": "news"}'


def events(body):
    while body:
        line, _, body = body.partition(b"\r\n")
        name, _, size = line.partition(b" ")
        end = int(size, 16) if size else 0
        yield name, body[:end]
        body = body[end + 2 :] if size else body


def answered(environ, content):
    if content == b"values?":
        kept = {name: len(value) for name, value in environ.items() if name.startswith("HTTP_META_")}
        return json.dumps(kept).encode()
    if content == b"sockets?":
        return json.dumps([name for name in environ if "socket" in name.lower() and "." in name]).encode()
    return content


def application(environ, start_response):
    said = []
    query = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"]))
    # Whatever the client sends is sent back, unless it looks like an instruction.
    fields = [("Content-Type", query.get("type", EVENTS)), ("Sec-WebSocket-Extensions", 'grip; message-prefix=""')]
    for name, content in events(environ["wsgi.input"].read()):
        if name == b"OPEN":
            said += [b"OPEN\r\n", b"TEXT %x\r\n%s\r\n" % (len(SUBSCRIBE), SUBSCRIBE)]
            count, _, size = query.get("values", "0-0").partition("-")
            fields += [(f"Set-Meta-{number}", "x" * int(size)) for number in range(int(count))]
        elif name in (b"TEXT", b"BINARY", b"CLOSE"):
            content = answered(environ, content)
            said.append(b"%s %x\r\n%s\r\n" % (name, len(content), content))
    start_response(query.get("status", "200 OK"), fields)
    return [b"".join(said)]
