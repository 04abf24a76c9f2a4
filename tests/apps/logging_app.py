"""Writes to wsgi.errors by each of its methods."""


def app(environ, start_response):
    errors = environ["wsgi.errors"]
    print("printed to wsgi.errors: caf\u00e9", file=errors)
    errors.write("written without an end")
    errors.flush()
    errors.write("\n")
    errors.writelines(["line one\n", "line two\n"])
    errors.flush()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok"]
