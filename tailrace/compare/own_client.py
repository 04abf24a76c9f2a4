"""The client that ships with Tailrace, for machines without wrk: the same load, in a process of its own.

python -m tailrace.compare.own_client http://127.0.0.1:8000/ --connections 64 --seconds 1 -H "Accept: text/html"
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from statistics import fmean
from typing import Any, Final
from urllib.parse import urlsplit

from tailrace._tailrace import load
from tailrace.compare.results import percentile
from tailrace.compare.served.files import FORM_BYTES
from tailrace.compare.work import Load, Work, counted

# As wrk's time-out (seconds).
PATIENCE: Final = 2.0


def command(work: Work) -> list[str]:
    """The command line."""
    line = [sys.executable, "-m", "tailrace.compare.own_client", work.url]
    line += ["--connections", str(work.connections), "--seconds", f"{work.seconds:g}"]
    line += ["--upload"] if work.upload else []
    return [*line, *(word for field in work.all_fields() for word in ("-H", field))]


def read(text: str) -> Load:
    """Understands what `main` prints."""
    found = json.loads(text)
    faults = {kind: found[f"{kind}_errors"] for kind in ("connect", "read", "write")}
    faults |= {"timeout": found["timeouts"], "status": found["refusals"]}
    latencies = (found["p50"], found["p99"], found["mean"])
    return counted(found["answers"], found["seconds"], faults, *latencies, found["processor"])


def measure(url: str, connections: int, seconds: float, fields: list[str], upload: bool = False) -> dict[str, Any]:
    """The counts of `load`, with percentiles and the mean (milliseconds) instead of all latencies, and the processor
    time (seconds) of this process.

    Raises OSError, and ValueError for a URL without an IP address.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ValueError(f"{url!r}: write a URL such as http://127.0.0.1:8000/")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    all_fields = [f"Host: {parts.netloc}", *fields]
    body = b"x" * FORM_BYTES if upload else b""
    if upload:
        all_fields += ["Content-Type: application/x-bytes", f"Content-Length: {len(body)}"]
    head = "".join(f"{field}\r\n" for field in all_fields)
    request = f"{'POST' if upload else 'GET'} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body
    begun = time.process_time()
    found = load(
        (parts.hostname, parts.port or 80), request, connections=connections, seconds=seconds, patience=PATIENCE
    )
    found["processor"] = time.process_time() - begun
    latencies = found.pop("latencies")
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        found[name] = percentile(latencies, part) / 1000 if latencies else None
    found["mean"] = fmean(latencies) / 1000 if latencies else None
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
    parser.add_argument("--upload", action="store_true", help=f"send a POST of {FORM_BYTES:,} bytes")
    parser.add_argument("-H", dest="fields", action="append", default=[], metavar="FIELD", help='"Name: value"')
    asked = parser.parse_args()
    print(json.dumps(measure(asked.url, asked.connections, asked.seconds, asked.fields, asked.upload)))


if __name__ == "__main__":
    main()
