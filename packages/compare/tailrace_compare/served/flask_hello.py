"""Flask's own first example, a page from a template, JSON, and an upload."""

from __future__ import annotations

from flask import Flask, Response, jsonify, render_template, request

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


closed = closing(app)
