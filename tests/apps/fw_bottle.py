"""A Bottle application: a form, a body, a static file with ranges, a generator."""

import hashlib
from pathlib import Path

from bottle import Bottle, HTTPResponse, request, response, static_file

app = Bottle()


@app.post("/form")
def form():
    file = request.files["file"]
    sha256 = hashlib.sha256(file.file.read()).hexdigest()
    return {"note": request.forms.getunicode("note"), "name": file.raw_filename, "sha256": sha256}


@app.post("/digest")
def digest():
    body = request.body.read()
    return {"sha256": hashlib.sha256(body).hexdigest(), "length": len(body)}


@app.get("/source")
def source():
    return static_file("fw_bottle.py", root=Path(__file__).parent, mimetype="text/x-python")


@app.delete("/source")
def gone():
    return HTTPResponse(status=204)


@app.get("/rows")
def rows():
    response.content_type = "text/plain"
    yield "first\n"
    for number in range(500):
        yield f"{number} é\n"


@app.get("/fails")
def fails():
    raise ValueError("the view has failed")
