"""Returns bytes in place of an iterable of bytes: iterating over them gives integers."""


def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return b"x" * 1000
