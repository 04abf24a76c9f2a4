"""A program that asks at a steady rate, whatever the answers do, and writes one line of JSON for each request.

    python -m harness.steady HOST PORT TARGET RATE

It ends when its standard input does, after the answers that are still due. Times are of the monotonic clock, which all
processes of a machine share.
"""

import asyncio
import json
import sys
import time
from collections import deque

# For one request in all (seconds).
PATIENCE = 60.0

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Asking:
    """Requests on connections that are kept; a request for which none is idle opens one."""

    def __init__(self, host: str, port: int, target: str) -> None:
        self._host, self._port = host, port
        self._request = f"GET {target} HTTP/1.1\r\nHost: test\r\n\r\n".encode()
        self._idle: deque[Connection] = deque()
        self._requests: set[asyncio.Task[None]] = set()

    async def run(self, rate: float) -> None:
        over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        due = time.monotonic()
        while not over.done():
            task = asyncio.create_task(self._ask())
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*self._requests)

    async def _ask(self) -> None:
        begun, said, fault = time.monotonic(), {}, None
        try:
            said = await asyncio.wait_for(self._exchange(), PATIENCE)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, ValueError) as error:
            fault = repr(error)
        print(json.dumps({"begun": begun, "ended": time.monotonic(), "fault": fault, **said}), flush=True)

    async def _exchange(self) -> dict[str, object]:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(self._request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lines = head.split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            body = await reader.readexactly(int(fields["content-length"]))
        except BaseException:
            writer.close()
            raise
        if fields.get("connection") == "close":
            writer.close()
        else:
            self._idle.append((reader, writer))
        status = int(lines[0].split()[1])
        return {"status": status, "body": body.decode("latin-1")} | ({} if status == 200 else {"fault": lines[0]})


if __name__ == "__main__":
    asyncio.run(Asking(sys.argv[1], int(sys.argv[2]), sys.argv[3]).run(float(sys.argv[4])))
