"""Flask-SocketIO for several workers: rooms, broadcasts, acknowledgements, and which worker has a session.

$NOTES is a file of what clients have noted, and of the sessions that have ended. $TO_POLL and $TO_ARRIVE are for slow
machines.
"""

import os
import sys
import time
from pathlib import Path

from flask import Flask, request
from flask_socketio import SocketIO, disconnect, emit, join_room

import tailrace.socketio
from tailrace.socketio import Manager

MODE = "gevent" if "gevent.monkey" in sys.modules else "threading"

app = Flask(__name__)
PING = int(os.environ.get("PING", "2"))
tailrace.socketio._TO_POLL = float(os.environ.get("TO_POLL", "5"))
tailrace.socketio._TO_ARRIVE = float(os.environ.get("TO_ARRIVE", "1"))
NOTES = os.environ.get("NOTES", os.devnull)
socketio = SocketIO(app, async_mode=MODE, client_manager=Manager(), ping_interval=PING, ping_timeout=5)


@app.get("/pid")
def pid():
    return str(os.getpid())


@app.get("/client")
def client():
    return f"{request.remote_addr} {request.url}"


@app.get("/wait")
def wait():
    while not Path(request.args["gate"]).exists():
        time.sleep(0.01)
    return "waited"


@app.post("/emit")
def emit_to_all():
    socketio.emit("news", request.get_json())
    return ""


@socketio.on("pid")
def pid_of_session():
    return os.getpid()


@socketio.on("addr")
def address_of_client():
    return request.remote_addr


@socketio.on("echo")
def echo(data):
    return data


@socketio.on("join")
def join(room):
    join_room(room)
    return os.getpid()


@socketio.on("say")
def say(room, data):
    emit("said", data, to=room, include_self=False)


@socketio.on("ask")
def ask(sid):
    """Has a client, of any worker, answer."""
    asker = request.sid
    socketio.emit("question", 6, to=sid, callback=lambda answer: socketio.emit("answer", answer, to=asker))


@socketio.on("note")
def note(text):
    with open(NOTES, "a") as notes:
        notes.write(f"{text}\n")


@socketio.on("work")
def work(seconds):
    """Takes that long after the end of a session."""
    note("begun")
    while "gone" not in Path(NOTES).read_text():
        time.sleep(0.01)
    time.sleep(seconds)
    note("done")


@socketio.on("disconnect")
def gone(*reason):
    """Takes as long as the session that ends has said when it was opened."""
    seconds = request.args.get("slow", 0, float)
    note(f"gone ({reason[0]})")
    if seconds:
        time.sleep(seconds)
        note("over")


@socketio.on("drop")
def drop(sid):
    disconnect(sid, namespace="/")
