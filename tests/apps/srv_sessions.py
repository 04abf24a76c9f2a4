"""Sessions in the memory of a worker, whose keys are in a cookie or a field. Each form of response opens one.

`/open/FORM?key=K` issues K, `/echo` what the request has, `/` says which worker has the session of the request.
"""

import os
import tempfile
from urllib.parse import parse_qs

SESSIONS = set()


def app(environ, start_response):
    asked = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
    form = environ["PATH_INFO"].removeprefix("/open/")
    key = environ.get("HTTP_X_SESSION") or environ.get("HTTP_COOKIE", "").rpartition("sid=")[2].strip('"')
    fields = [("X-Pid", str(os.getpid())), ("Content-Type", "text/plain")]
    if form == "/":
        fields += [("X-Known", str(key in SESSIONS))]
    else:
        if form != "/echo":
            key = asked["key"]
            SESSIONS.add(key)
        fields += [("X-Session", key), ("Set-Cookie", asked.get("cookie", "sid={}; Path=/").format(key))]
    status = {"redirect": "302 Found", "error": "500 Oops", "empty": "204 No Content"}.get(form, "200 OK")
    if form == "file":
        file = tempfile.TemporaryFile()  # noqa: SIM115
        file.write(b"file")
        file.seek(0)
        start_response(status, fields)
        return environ["wsgi.file_wrapper"](file)
    if form == "raised":
        start_response(status, fields)
        raise ValueError("after the head of a response that is never sent")
    write = start_response(status, fields)
    if form == "write":
        write(b"write")
        return []
    if form == "generator":
        return iter([b"", b"gene", b"rator"])
    return [] if form in ("empty", "redirect") else [form.encode() * 1000]
