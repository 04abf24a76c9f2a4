"""/fork: forks a child that looks at its open files and ends as a program does, and responds with what it saw."""

import contextlib
import json
import os
import sys


def app(environ, start_response):
    seen = {}
    if environ["PATH_INFO"] == "/fork":
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            links = []
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(FileNotFoundError):
                    links.append(os.readlink(f"/proc/self/fd/{name}"))
            os.write(writer, json.dumps(links).encode())
            os.close(writer)
            sys.exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            files = json.load(pipe)
        seen = {"files": files, "status": os.waitpid(child, 0)[1]}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(seen).encode()]
