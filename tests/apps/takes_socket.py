"""Takes over the connection of a WebSocket request, as libraries do, and echoes bytes without the frames of RFC 6455."""

import socket
import threading

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/offered":
        offered = environ.get("werkzeug.socket")
        text = f"{isinstance(offered, socket.socket)} {offered is environ.get('gunicorn.socket')} {offered!r}"
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [text.encode()]
    if path == "/closed":
        environ["werkzeug.socket"].close()
        environ["werkzeug.socket"].close()
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]
    if path == "/broken":
        raise ValueError("broken")
    if path == "/cut":
        start_response("200 OK", [("Content-Type", "text/plain")])(b"part")
        raise ValueError("cut")
    if path == "/late":
        start_response("200 OK", [("Content-Length", "9")])(b"begun ")
        try:
            environ["werkzeug.socket"].recv(1)
        except ConnectionError:
            return [b"yes"]
        return [b"no!"]
    if path == "/told":
        environ["tailrace.on_disconnect"](lambda: environ["wsgi.errors"].write("/told: the client has left\n"))
    taken = environ["gunicorn.socket" if path == "/gunicorn" else "werkzeug.socket"]
    taken.sendall(SWITCHING)
    environ["tailrace.set_deadline"](0.001)
    if path == "/raises":
        raise ValueError("in the middle")
    if path == "/refused":
        raise ConnectionRefusedError(111, "the database")
    if path == "/engineio":
        raise ConnectionError
    if path == "/kept":
        # A thread goes on reading, as that of simple-websocket does.
        threading.Thread(target=taken.recv, args=(1,)).start()
        return []
    if path == "/endless":
        try:
            while True:
                taken.sendall(b"x" * 100_000)
        except OSError as error:
            environ["wsgi.errors"].write(f"/endless: stopped by {type(error).__name__}\n")
            raise
    if path == "/large":
        taken.sendall(b"x" * 3_000_000)
    else:
        echo(taken)
    environ["wsgi.errors"].write(f"{path}: the end was read, timeout {taken.gettimeout()}\n")
    if path == "/gunicorn":
        raise StopIteration
    # As frameworks do, which know only responses.
    start_response("200 OK", [("Content-Length", "7")])
    return [b"ignored"]


def echo(taken):
    while received := taken.recv(4096):
        taken.sendall(received)
