"""A Falcon application: media, streams, bodies without a known length, error handlers."""

import hashlib
from pathlib import Path

import falcon


class Seeds:
    """A collection in memory."""

    def __init__(self):
        self.kept = {}

    def on_get(self, req, resp, name):
        if name not in self.kept:
            raise falcon.HTTPNotFound(title="No such seed", description=name)
        resp.media = self.kept[name]
        resp.etag = f"v{len(self.kept[name])}"

    def on_put(self, req, resp, name):
        self.kept[name] = req.media
        resp.status = falcon.HTTP_201
        resp.location = req.uri
        resp.media = {"name": name}

    def on_delete(self, req, resp, name):
        self.kept.pop(name, None)
        resp.status = falcon.HTTP_204


class Digest:
    """What was posted."""

    def on_post(self, req, resp):
        sha = hashlib.sha256()
        while block := req.bounded_stream.read(4096):
            sha.update(block)
        resp.media = {"sha256": sha.hexdigest(), "length": req.content_length}


class Form:
    """Multipart, part by part, as it is read from wsgi.input."""

    def on_post(self, req, resp):
        resp.media = [
            {"name": part.name, "file": part.filename, "size": len(part.get_data())} for part in req.get_media()
        ]


class Stream:
    """A generator, and a file with a known length."""

    def on_get(self, req, resp):
        resp.content_type = "text/plain"
        resp.stream = (b"%d\n" % number for number in range(2000))

    def on_get_file(self, req, resp):
        path = Path(__file__)
        resp.content_type = "text/x-python"
        resp.set_stream(path.open("rb"), path.stat().st_size)


class Fault:
    """A mistake of the application, made presentable by its handler."""

    def on_get(self, req, resp):
        raise LookupError("behind the scenes")


def explain(req, resp, error, params):
    raise falcon.HTTPServiceUnavailable(title=str(error), retry_after=30)


app = falcon.App()
app.add_error_handler(LookupError, explain)
app.add_route("/seeds/{name}", Seeds())
app.add_route("/digest", Digest())
app.add_route("/form", Form())
app.add_route("/stream", Stream())
app.add_route("/file", Stream(), suffix="file")
app.add_route("/fault", Fault())
