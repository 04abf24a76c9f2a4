"""The page that `--reload` shows while the application does not load."""

from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

from tailrace.errors import LoadError
from tailrace.worker.broken import broken


def answer(application, **environ):
    environ["QUERY_STRING"] = ""
    setup_testing_defaults(environ)
    seen = []
    body = validator(application)(environ, lambda status, fields, exc_info=None: seen.append((status, dict(fields))))
    with_body = b"".join(body)
    body.close()
    return *seen[0], with_body.decode()


def test_the_page_of_an_application_that_does_not_load():
    application = broken(LoadError("importing <shop> failed: NameError", 'File "shop.py"\n  a < b & "c"\n'))
    status, fields, page = answer(application, HTTP_ACCEPT="text/html,*/*")
    assert status == "500 Internal Server Error"
    assert fields["Content-Type"] == "text/html; charset=utf-8"
    assert fields["Cache-Control"] == "no-store"
    assert "importing &lt;shop&gt; failed: NameError" in page
    assert "a &lt; b &amp; &quot;c&quot;" in page
    status, fields, text = answer(application, HTTP_ACCEPT="*/*")
    assert fields["Content-Type"] == "text/plain; charset=utf-8"
    assert (
        text == 'The application does not load: importing <shop> failed: NameError\n\nFile "shop.py"\n  a < b & "c"\n'
    )
