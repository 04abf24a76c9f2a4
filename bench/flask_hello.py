"""Flask's own first example."""

from __future__ import annotations

from flask import Flask

app = Flask(__name__)


@app.route("/")
@app.route("/ready")
def hello_world() -> str:
    return "<p>Hello, World!</p>"
