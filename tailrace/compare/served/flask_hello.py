"""Flask's own first example, and a page from a template."""

from __future__ import annotations

from flask import Flask, render_template

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


closed = closing(app)
