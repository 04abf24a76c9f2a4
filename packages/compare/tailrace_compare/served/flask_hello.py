"""Flask's own first example, a page from a template, JSON, an upload, a view that waits and one that computes."""

from __future__ import annotations

import time

from flask import Flask, Response, jsonify, render_template, request

from . import called
from .closing import closing

app = Flask(__name__)

ORDERS = [{"number": n, "customer": f"Customer <{n}> & Sons", "total": 19.5 * n} for n in range(1, 21)]


@app.route("/")
@app.route("/ready")
def hello_world() -> str:
    return "<p>Hello, World!</p>"


@app.route("/page")
def page() -> str:
    return render_template("orders.html", title="Orders", orders=ORDERS)


@app.route("/json")
def orders() -> Response:
    return jsonify(ORDERS)


@app.route("/upload", methods=["POST"])
def upload() -> str:
    return str(len(request.get_data()))


@app.route("/waits")
def waits() -> str:
    time.sleep(0.02)
    return "<p>Waited</p>"


@app.route("/computes")
def computes() -> str:
    end = time.thread_time() + 0.005
    while time.thread_time() < end:
        pass
    return "<p>Computed</p>"


@app.route("/called")
def floor() -> str:
    return called.microseconds(app, request.environ)


closed = closing(app)
