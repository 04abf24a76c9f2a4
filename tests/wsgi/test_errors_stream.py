"""wsgi.errors: text goes to the server's standard error, at once and whole lines (PEP 3333)."""

from harness.server import Server


def test_errors_reach_standard_error() -> None:
    with Server("logging_app:app") as server:
        # Lines of the start, which the master writes, are not among those of the request then.
        assert server.logged("ready in")
        server.get("/print")
        assert server.logged("printed to wsgi.errors: caf\u00e9")
        assert server.logged("written without an end")
        assert server.logged("line one\nline two\n")


def test_bytes_are_refused_by_errors(plain) -> None:
    raised = []

    def app(environ, start_response):
        try:
            environ["wsgi.errors"].write(b"bytes")
        except TypeError as error:
            raised.append(error)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"ok"]

    assert plain.serve(app).ask().body == b"ok"
    assert len(raised) == 1
