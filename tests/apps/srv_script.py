"""Responses that follow a script in the query, and mixed ones that tell by their bytes to which request they belong.

/script?steps=[[size, "block"], [0, "pause"], ...]&id=ID yields blocks of the endless pattern; a pause waits at the gate ID-N,
where N counts the pauses. /open?gate=G opens one. /mix?id=ID&size=N&shape=S answers N bytes that only ID gives.
"""

import hashlib
import json
import random
import time
from urllib.parse import parse_qs

import srv_shapes


def own_bytes(name, size):
    """`size` bytes that belong to `name`."""
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def script(steps, name):
    at = pauses = 0
    for size, what in steps:
        if what == "pause":
            if not srv_shapes.pass_gate(f"{name}-{pauses}"):
                raise TimeoutError(f"the gate {name}-{pauses} was not opened")
            pauses += 1
        else:
            yield srv_shapes.pattern(at, size)
            at += size


def in_random_blocks(data, numbers):
    at = 0
    while at < len(data):
        size = numbers.choice([0, 1, 10, 100, 1000, 20_000])
        yield data[at : at + size]
        at += size
        if numbers.random() < 0.02:
            time.sleep(0.001)


@srv_shapes.counted
def app(environ, start_response):
    query = {key: values[-1] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
    if environ["PATH_INFO"] == "/script":
        steps = json.loads(query["steps"])
        headers = [("Content-Type", "application/octet-stream")]
        if query.get("length"):
            headers.append(("Content-Length", str(sum(size for size, what in steps))))
        start_response("200 OK", headers)
        return script(steps, query["id"])
    if environ["PATH_INFO"] == "/mix":
        name, size, shape = query["id"], int(query["size"]), query["shape"]
        body = environ["wsgi.input"].read()
        data = own_bytes(name, size)
        headers = [("Content-Type", "text/plain"), ("X-Id", name), ("X-Body", hashlib.sha256(body).hexdigest())]
        numbers = random.Random(name)
        if shape == "sleep":
            time.sleep(numbers.random() * 0.01)
        if shape == "length":
            headers.append(("Content-Length", str(size)))
        start_response("200 OK", headers)
        if shape in ("generator", "length"):
            return in_random_blocks(data, numbers)
        if shape == "bytes":
            return data
        if shape == "list":
            return list(in_random_blocks(data, random.Random(0)))
        return [data]
    return srv_shapes.answer(environ, start_response)
