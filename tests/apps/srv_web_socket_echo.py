"""WebSockets without threads that echo, and are subscribed to a channel."""

EVENTS = "application/websocket-events"
SUBSCRIBE = b'c:{"type": "subscribe", "channel": "news"}'


def events(body):
    while body:
        line, _, body = body.partition(b"\r\n")
        name, _, size = line.partition(b" ")
        end = int(size, 16) if size else 0
        yield name, body[:end]
        body = body[end + 2 :] if size else body


def application(environ, start_response):
    said = []
    for name, content in events(environ["wsgi.input"].read()):
        if name == b"OPEN":
            said += [b"OPEN\r\n", b"TEXT %x\r\n%s\r\n" % (len(SUBSCRIBE), SUBSCRIBE)]
        elif name in (b"TEXT", b"BINARY", b"CLOSE"):
            said.append(b"%s %x\r\n%s\r\n" % (name, len(content), content))
    # Whatever the client sends is sent back, unless it looks like an instruction.
    fields = [("Content-Type", EVENTS), ("Sec-WebSocket-Extensions", 'grip; message-prefix=""')]
    start_response("200 OK", fields)
    return [b"".join(said)]
