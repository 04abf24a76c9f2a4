"""The client, as a process of its own: it must not compete with the application for the interpreter.

    python -I -S client.py < commands

Reads a JSON object from each line of standard input and answers with one. Imports only the standard library, nothing of
the package, since it is started without it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any, Final

_RECEIVED: Final = 1 << 20


def ask(host: str, port: int, request: str, response: str, seconds: float, most: int) -> dict[str, Any]:
    """Sends the bytes of the file `request`, and writes up to `most` bytes of what comes to the file `response`.

    seconds: how long the response may take. The result: `ms`, from the first byte that is sent to the end of the
    connection; `bytes` that came; `first`, the bytes that the first read gave; `is_cut`, it took too long.
    """
    with open(request, "rb") as file:
        sent = file.read()
    kept: list[bytes] = []
    total = first = room = 0
    is_cut = False
    with socket.create_connection((host, port), seconds) as client:
        began = time.perf_counter()
        end = began + seconds
        try:
            client.sendall(sent)
            while True:
                client.settimeout(max(0.001, end - time.perf_counter()))
                block = client.recv(_RECEIVED)
                if not block:
                    break
                first = first or len(block)
                total += len(block)
                room = most - total + len(block)
                if room > 0:
                    kept.append(block[:room])
        except TimeoutError:
            is_cut = True
        except ConnectionError:
            pass  # the server has broken the connection, which its record says, too
        took = time.perf_counter() - began
    with open(response, "wb") as file:
        file.writelines(kept)
    return {"ms": took * 1e3, "bytes": total, "first": first, "is_cut": is_cut}


def main() -> None:
    """Answers each line until standard input ends."""
    for line in sys.stdin:
        try:
            answer = ask(**json.loads(line))
        except OSError as error:
            answer = {"error": str(error)}
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:
            # The doctor has ended, by its application. Python would report this pipe again at its own end.
            os._exit(1)


if __name__ == "__main__":
    main()
