"""The client that ships with Tailrace, where `wrk` is not installed: the same load, in a process of its own.

python -m tailrace.compare.own_client http://127.0.0.1:8000/ --connections 64 --seconds 1 -H "Accept: text/html"
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final
from urllib.parse import urlsplit

from tailrace._tailrace import load

# As wrk's time-out (seconds).
PATIENCE: Final = 2.0


def command(url: str, connections: int, seconds: float, fields: tuple[str, ...] = ()) -> list[str]:
    """The command line. fields: of each request, beside Host."""
    line = [sys.executable, "-m", "tailrace.compare.own_client", url]
    line += ["--connections", str(connections), "--seconds", f"{seconds:g}"]
    return [*line, *(word for field in fields for word in ("-H", field))]


def measure(url: str, connections: int, seconds: float, fields: list[str]) -> dict[str, Any]:
    """What `load` counts, with percentiles (milliseconds) in place of all latencies.

    Raises ValueError for a URL that is not one of an IP address, and OSError.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError(f"{url!r}: write a URL such as http://127.0.0.1:8000/")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = "".join(f"{field}\r\n" for field in [f"Host: {parts.netloc}", *fields])
    request = f"GET {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1")
    found = load(
        (parts.hostname, parts.port or 80), request, connections=connections, seconds=seconds, patience=PATIENCE
    )
    latencies = found.pop("latencies")
    for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        found[name] = latencies[min(len(latencies) - 1, int(part * len(latencies)))] / 1000 if latencies else None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tailrace.compare.own_client",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("-H", dest="fields", action="append", default=[], metavar="FIELD", help='"Name: value"')
    asked = parser.parse_args()
    print(json.dumps(measure(asked.url, asked.connections, asked.seconds, asked.fields)))


if __name__ == "__main__":
    main()
