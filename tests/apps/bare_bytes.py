"""Returns bytes where an iterable of bytes is meant: iterating them gives integers."""


def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return b"x" * 1000
