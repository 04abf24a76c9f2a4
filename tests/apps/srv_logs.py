"""What logs are about: /fails raises an exception, and any other path sets keys of environ."""


def broken(what):
    raise ValueError(f"asked for {what}")


def app(environ, start_response):
    if environ["PATH_INFO"] == "/fails":
        broken(environ["QUERY_STRING"])
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-Made", 'by "hand"')])
    environ["app.user"] = "jos\xe9\n"
    environ["REMOTE_USER"] = "joe"
    environ["app.count"] = 7
    environ["app.other"] = object()
    return [b"logged"]
