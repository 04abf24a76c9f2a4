"""The growth of workers by endpoint: an application that leaks 1 MiB in one of ten endpoints, while others run."""

import functools
import random
import re
import time
from contextlib import ExitStack

import pytest
from harness.addresses import free_address
from harness.operated import operating
from harness.status import document
from server.probes import at_once, eventually, meanwhile

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

    at_once(*(functools.partial(work, seed) for seed in range(clients)))


def rows(at):
    return {each["endpoint"]: each for each in document(at)["endpoints"]}


def blamed(at):
    return [name for name, each in rows(at).items() if "memory-growth" in [one["key"] for one in each["findings"]]]


SHOP = """
import os
import time

kept = []

def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/cart":
        kept.append(os.urandom(40_000))
    elif path == "/movie":
        # Its temporary memory exceeds the kept memory, and occupies the same gaps.
        scratch = [os.urandom(100_000) for _ in range(3)]
        time.sleep(0.02)
    elif path == "/search":
        sum(range(50_000))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [path.encode()]
"""
SHARES = {"/cart": 15, "/movie": 30, "/search": 20, "/": 35}


@pytest.mark.parametrize("more", [[], ["--gevent"]], ids=["threads", "gevent"])
def test_a_leak_of_little_at_a_time_is_found_among_endpoints_that_need_more_for_a_moment(tmp_path, more):
    (tmp_path / "app.py").write_text(SHOP)
    at = free_address()
    with operating(tmp_path, "app:app", "--workers", "1", "--threads", "16", "--status", at.bind, *more) as server:
        with ExitStack() as stack:
            for seed in range(8):
                chosen = random.Random(seed)
                ask_one = lambda chosen=chosen: server.get(chosen.choices(list(SHARES), list(SHARES.values()))[0])  # noqa: E731
                stack.enter_context(meanwhile(ask_one))
            eventually(lambda: blamed(at) == ["GET /cart"], "the leak is found", 120)
        cart = rows(at)["GET /cart"]
        assert abs(cart["grown_bytes"] - 40_000 * cart["grown_responses"]) < 4 * cart["grown_error_bytes"], cart


@pytest.mark.parametrize("more", [[], ["--gevent"]], ids=["threads", "gevent"])
def test_a_leak_is_found_at_its_endpoint(tmp_path, more):
    (tmp_path / "app.py").write_text(APP)
    at = free_address()
    with operating(tmp_path, "app:app", "--workers", "1", "--threads", "8", "--status", at.bind, *more) as server:
        ask(server, 300, 3)
        found = rows(at)
        leak = found["GET /page-d"]["grown_bytes"] / found["GET /page-d"]["grown_responses"]
        assert 0.7 * LEAK < leak < 1.3 * LEAK, found
        assert len(found) == 10
        for row in found.values():
            if row["endpoint"] != "GET /page-d":
                estimate = max(LEAK / 6 * row["grown_responses"], 4 * row["grown_error_bytes"])
                assert abs(row["grown_bytes"]) < estimate < LEAK / 2 * row["grown_responses"], row
        # Only what came last has not been measured yet.
        assert all(row["grown_responses"] > 0.8 * row["responses"] for row in found.values()), found


def test_the_line_of_max_rss_names_the_endpoint(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    with operating(tmp_path, "app:app", "--workers", "1", "--max-rss", "120MiB") as server:
        ask(server, 400, 3)
        server.logged("ready in", 2)
        (line,) = re.findall(r"has \d+ MiB in memory \(--max-rss\).*replacing it", server.log)
        found = re.search(r"it grew with GET /page-d \(\+(\d\.\d) MiB a response, (\d+\.\d) MiB in total\)", line)
        assert found, line
        assert 0.6 < float(found[1]) < 1.5 and float(found[2]) > 40, line


def test_without_a_leak_nothing_is_blamed(tmp_path):
    (tmp_path / "app.py").write_text(APP.replace("/page-d", "/none"))
    at = free_address()
    with operating(tmp_path, "app:app", "--workers", "1", "--threads", "8", "--status", at.bind) as server:
        ask(server, 150, 4)
        found = rows(at)
        assert len(found) == 10
        for row in found.values():
            assert abs(row["grown_bytes"]) < max(4 << 20, 3 * row["grown_error_bytes"]), row
        assert blamed(at) == []
