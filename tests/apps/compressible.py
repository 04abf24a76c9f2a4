"""Responses of many shapes that become smaller by compression. `size`: of the text, in bytes."""

import os
import random
import time
from urllib.parse import parse_qsl

# Becomes smaller, but not by much.
_WORDS = [bytes(random.Random(number).randbytes(3)).hex().encode() for number in range(2000)]
_TEXT = b" ".join(random.Random(0).choices(_WORDS, k=300_000))


def text(size):
    return (_TEXT * (size // len(_TEXT) + 1))[:size]


def app(environ, start_response):
    asked = dict(parse_qsl(environ["QUERY_STRING"]))
    data = text(int(asked.get("size", "20000")))
    fields = [("Content-Type", asked.get("type", "text/plain"))]
    fields += [(name[1:], value) for name, value in asked.items() if name.startswith("+")]
    write = start_response(asked.get("status", "200 OK"), fields)
    shape = environ["PATH_INFO"][1:]
    if shape == "list":
        return [data]
    if shape == "parts":
        return [data[:100], data[100:40_000], data[40_000:]]
    if shape == "blocks":
        return (data[at : at + 128] for at in range(0, len(data), 128))
    if shape == "large-blocks":
        return (data[at : at + 70_000] for at in range(0, len(data), 70_000))
    if shape == "write":
        for at in range(0, len(data), 5_000):
            write(data[at : at + 5_000])
        return [b" end"]
    if shape == "file":
        with open("text", "wb") as file:
            file.write(data)
        return environ["wsgi.file_wrapper"](open("text", "rb"))
    if shape == "gated":
        return gated(asked["gate"])
    if shape == "fails":
        return fails(data)
    return []


def gated(gate):
    for number in range(3):
        yield b"block %d " % number * 20
        while not os.path.exists(f"{gate}{number}"):
            time.sleep(0.005)


def fails(data):
    yield data
    raise ValueError("the application fails")
