"""A Flask application: sessions, uploads, streams, files, errors."""

import hashlib

from flask import Flask, Response, abort, flash, get_flashed_messages, jsonify, redirect, request, session, url_for

app = Flask(__name__)
app.secret_key = "a secret of the tests"


@app.get("/")
def index():
    return "<h1>Seeds</h1>"


@app.get("/seeds/<path:name>")
def seed(name):
    return jsonify(name=name, tags=request.args.getlist("tag"), url=url_for("seed", name=name, _external=True))


@app.post("/login")
def login():
    session["name"] = request.form["name"]
    flash("welcome")
    return redirect(url_for("me"))


@app.get("/me")
def me():
    if "name" not in session:
        abort(401)
    session["visits"] = session.get("visits", 0) + 1
    return jsonify(name=session["name"], visits=session["visits"], said=get_flashed_messages())


@app.post("/upload")
def upload():
    found = [
        {"field": field, "name": file.filename, "sha256": hashlib.sha256(file.read()).hexdigest()}
        for field, file in request.files.items(multi=True)
    ]
    return jsonify(files=found, form=request.form.to_dict())


@app.post("/raw")
def raw():
    total = 0
    while block := request.stream.read(10_000):
        total += len(block)
    return jsonify(length=total, told=request.content_length)


@app.post("/small")
def small():
    request.max_content_length = 1000
    return jsonify(length=len(request.get_data()))


@app.get("/fails")
def fails():
    raise ValueError("the view has failed")


@app.get("/stream-fails")
def stream_fails():
    def rows():
        yield "first\n"
        raise ValueError("the stream has failed")

    return Response(rows(), mimetype="text/plain")
