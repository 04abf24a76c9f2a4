"""Names the file that is to be sent in place of its body, by a path of URLs, as nginx and --sendfile-root read it."""


def app(environ, start_response):
    fields = [("Content-Type", "text/plain"), ("X-Accel-Redirect", "/protected" + environ["PATH_INFO"])]
    start_response("200 OK", fields)
    return [b"the body of the application"]
