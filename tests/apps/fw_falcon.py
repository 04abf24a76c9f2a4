"""A Falcon application: a form, a body, a file with a known length, a generator."""

import hashlib
from pathlib import Path

import falcon


class Form:
    """Multipart, part by part, as it is read from wsgi.input."""

    def on_post(self, req, resp):
        note, file = ((part.filename, part.get_data()) for part in req.get_media())
        resp.media = {"note": note[1].decode(), "name": file[0], "sha256": hashlib.sha256(file[1]).hexdigest()}


class Digest:
    """What was posted."""

    def on_post(self, req, resp):
        sha = hashlib.sha256()
        while block := req.bounded_stream.read(4096):
            sha.update(block)
        resp.media = {"sha256": sha.hexdigest(), "length": req.content_length}


class Source:
    """This file."""

    def on_get(self, req, resp):
        path = Path(__file__)
        resp.content_type = "text/x-python"
        resp.set_stream(path.open("rb"), path.stat().st_size)

    def on_delete(self, req, resp):
        resp.status = falcon.HTTP_204


class Rows:
    """A generator."""

    def on_get(self, req, resp):
        resp.content_type = "text/plain"
        resp.stream = (line.encode() for line in ("first\n", *(f"{number} é\n" for number in range(500))))


class Fault:
    """A mistake."""

    def on_get(self, req, resp):
        raise ValueError("the view has failed")


app = falcon.App()
for name, resource in {"form": Form, "digest": Digest, "source": Source, "rows": Rows, "fails": Fault}.items():
    app.add_route(f"/{name}", resource())
