"""What crowds of slow clients ask for, beside the shapes of srv_shapes.py.

/shared: bytes that all responses have in common. /own?size=N: one block that this response alone has.
/at?path=P: the file with that name, through wsgi.file_wrapper.
"""

from urllib.parse import parse_qs

import srv_shapes

SHARED = srv_shapes.pattern(0, 2_000_000)


def app(environ, start_response):
    query = {key: values[-1] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
    headers = [("Content-Type", "application/octet-stream")]
    if environ["PATH_INFO"] == "/shared":
        start_response("200 OK", headers)
        return [SHARED]
    if environ["PATH_INFO"] == "/own":
        start_response("200 OK", headers)
        return [srv_shapes.pattern(0, int(query["size"]))]
    if environ["PATH_INFO"] == "/at":
        start_response("200 OK", headers)
        return environ["wsgi.file_wrapper"](open(query["path"], "rb"))
    return srv_shapes.app(environ, start_response)
