"""The application of docs/incidents.md: each path is for one of its incidents."""

import os
import signal
import threading
import time

STOCK = threading.Lock()
# Larger than the buffers of a connection.
PHOTO = bytes(8_000_000)


def app(environ, start_response):
    path = environ["PATH_INFO"].strip("/") or "index"
    return PAGES[path](environ, start_response)


def respond(start_response, body):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def index(environ, start_response):
    return respond(start_response, b"Hello, World!\n")


def crash(environ, start_response):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def order(environ, start_response):
    with STOCK:
        reserve()
    return respond(start_response, b"ordered\n")


def reserve():
    with STOCK:
        time.sleep(0.01)


def upload(environ, start_response):
    environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    return respond(start_response, b"saved\n")


def photo(environ, start_response):
    return respond(start_response, PHOTO)


def search(environ, start_response):
    query()
    return index(environ, start_response)


def query():
    for _ in range(40):
        time.sleep(0.05)


def export(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/csv")])
    return rows()


def rows():
    for number in range(20_000):
        yield b"%06d,%s\n" % (number, b"x" * 56)


def events(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/event-stream")])
    number = 0
    while True:
        number += 1
        yield b"id: %d\ndata: new\n\n" % number
        time.sleep(0.5)


PAGES = {each.__name__: each for each in (index, crash, order, upload, photo, search, export, events)}
