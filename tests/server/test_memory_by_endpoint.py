"""The growth of workers by endpoint: an application that leaks 1 MiB in one of ten endpoints, while others run."""

import json
import random
import re
import threading
import time
import urllib.request

import pytest
from harness.addresses import free_address
from harness.operated import Operated

APP = """
import os
import time

kept = []

def app(environ, start_response):
    path = environ["PATH_INFO"]
    # What is freed again is no growth.
    scratch = os.urandom(1 << 16) * 8
    time.sleep(0.002)
    if path == "/page-d":
        kept.append(os.urandom(1 << 10) * 1024)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [path.encode(), scratch[:1]]
"""
LEAK = 1 << 20


def ask(server, number, clients):
    """`number` requests by each of so many clients at once, to endpoints at random."""

    def work(seed):
        chosen = random.Random(seed)
        for _ in range(number):
            # Now and then no request runs, as in most servers.
            time.sleep(chosen.uniform(0, 0.012))
            assert server.get(f"/page-{chosen.choice('abcdefghij')}").status == 200

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


@pytest.mark.parametrize("more", [[], ["--gevent"]], ids=["threads", "gevent"])
def test_a_leak_is_found_at_its_endpoint(tmp_path, more):
    (tmp_path / "app.py").write_text(APP)
    at = free_address()
    with Operated(tmp_path, "app:app", "--workers", "1", "--threads", "8", "--status", at.bind, *more) as server:
        server.serves()
        ask(server, 300, 3)
        with urllib.request.urlopen(f"{at.url}/status.json") as answer:
            rows = {each["endpoint"]: each for each in json.load(answer)["endpoints"]}
        grown = {name: row["grown_bytes"] / row["grown_responses"] for name, row in rows.items()}
        assert 0.7 * LEAK < grown.pop("GET /page-d") < 1.3 * LEAK, rows
        assert len(grown) == 9 and all(abs(each) < LEAK / 6 for each in grown.values()), grown
        # Only what came last has not been measured yet.
        assert all(row["grown_responses"] > 0.8 * row["responses"] for row in rows.values()), rows
        server.stop()


def test_the_line_of_max_rss_names_the_endpoint(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    with Operated(tmp_path, "app:app", "--workers", "1", "--max-rss", "120MiB") as server:
        server.serves()
        ask(server, 400, 3)
        server.logged("ready in", 2)
        (line,) = re.findall(r"has \d+ MiB in memory \(--max-rss\).*replacing it", server.log)
        found = re.search(r"it grew with GET /page-d \(\+(\d\.\d) MiB a response, (\d+\.\d) MiB in total\)", line)
        assert found, line
        assert 0.6 < float(found[1]) < 1.5 and float(found[2]) > 40, line
        server.stop()


def test_without_a_leak_nothing_is_blamed(tmp_path):
    (tmp_path / "app.py").write_text(APP.replace("/page-d", "/none"))
    at = free_address()
    with Operated(tmp_path, "app:app", "--workers", "1", "--threads", "8", "--status", at.bind) as server:
        server.serves()
        ask(server, 150, 4)
        with urllib.request.urlopen(f"{at.url}/status.json") as answer:
            rows = json.load(answer)["endpoints"]
        assert len(rows) == 10
        for row in rows:
            assert abs(row["grown_bytes"]) < row["grown_responses"] * LEAK / 5, row
        server.stop()
