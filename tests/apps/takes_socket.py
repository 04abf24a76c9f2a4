"""Takes the socket of a WebSocket request as simple-websocket does, which Flask-Sock and Flask-SocketIO use."""


def application(environ, start_response):
    if environ["PATH_INFO"] == "/missing":
        start_response("404 Not Found", [("Content-Length", "0")])
        return []
    if environ["PATH_INFO"] == "/broken":
        raise ValueError("broken")
    for key in ("werkzeug.socket", "gunicorn.socket", "eventlet.input"):
        if key in environ:
            raise AssertionError(key)
    try:
        raise RuntimeError("Cannot obtain socket from WSGI environment.")
    except RuntimeError:
        if environ["PATH_INFO"] == "/uncaught":
            raise
        start_response("500 Internal Server Error", [("Content-Length", "0")])
        return []
