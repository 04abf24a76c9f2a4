"""The page that `--reload` shows while the application does not load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


# As on the error pages of the core (`crates/http/src/encode.rs`).
_STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;overflow-wrap:anywhere}"
    "pre{font-size:13px;padding:1em;border:1px solid;border-radius:6px;overflow:auto}"
)
_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>The application does not load</title>
<style>{style}</style>
<h1>The application does not load</h1>
<p>{message}</p><pre>{trace}</pre>
<p>Save the file to try again, then reload this page.</p>
</html>
"""


def broken(error: TailraceError) -> WSGIApplication:
    """An application that answers every request with the reason why the real one could not be loaded."""
    # Imported here, since a server without such an application does not need the table of entities.
    import html

    trace = getattr(error, "user_traceback", "")
    page = _PAGE.format(style=_STYLE, message=html.escape(str(error)), trace=html.escape(trace)).encode()
    text = f"The application does not load: {error}\n\n{trace}".encode()

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        kind, body = ("html", page) if "text/html" in environ.get("HTTP_ACCEPT", "") else ("plain", text)
        start_response(
            "500 Internal Server Error",
            [
                ("Content-Type", f"text/{kind}; charset=utf-8"),
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
            ],
        )
        return [body]

    return application
