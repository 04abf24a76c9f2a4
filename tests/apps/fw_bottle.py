"""A Bottle application: routes, signed cookies, static files with ranges, generators, templates."""

import hashlib
from pathlib import Path

from bottle import Bottle, abort, redirect, request, response, static_file, template

SECRET = "a secret of the tests"

app = Bottle()


@app.get("/hello/<name>")
def hello(name):
    return template("<p>Hello {{name}}, {{count}} seeds</p>", name=name, count=request.query.count or "no")


@app.post("/cookie")
def set_cookie():
    response.set_cookie("name", request.forms.getunicode("name"), secret=SECRET, path="/")
    redirect("/cookie", 303)


@app.get("/cookie")
def get_cookie():
    name = request.get_cookie("name", secret=SECRET)
    if name is None:
        abort(403, "no cookie that we have signed")
    return {"name": name}


@app.post("/upload")
def upload():
    file = request.files["seeds"]
    return {"name": file.raw_filename, "sha256": hashlib.sha256(file.file.read()).hexdigest()}


@app.put("/json")
def put_json():
    return {"given": request.json}


@app.get("/source")
def source():
    return static_file("fw_bottle.py", root=Path(__file__).parent, mimetype="text/x-python", download="app.py")


@app.get("/rows")
def rows():
    response.content_type = "text/plain"
    yield "first\n"
    for number in range(500):
        yield f"{number} é\n"


@app.get("/fails")
def fails():
    raise ValueError("the view has failed")
