"""The figures for statsd: lines, datagrams, and the master that sends them."""

import socket

import pytest
from package.in_status import DELIVERIES, Board, shared, worker

from tailrace.errors import ConfigError
from tailrace.master import statsd
from tailrace.status import snapshot
from tailrace.status.statsd import MAX_PACKET, Lines, packets


def taken(requests, ok=0, **more):
    board = Board({"requests": requests, "queued": 3}, deliveries={"classes": {"2xx": ok}, **more})
    return snapshot.take(shared(worker(), delivered=DELIVERIES), board, lambda: 10.0)


def test_a_counter_is_sent_as_what_was_added_and_a_gauge_as_it_is():
    lines = Lines()
    first = lines.of(taken(5, 4))
    assert {"tailrace.requests:5|c", "tailrace.responses:4|c|#class:2xx", "tailrace.queue_requests:3|g"} <= set(first)
    assert "tailrace.workers:1|g|#state:serving" in first
    second = lines.of(taken(7, 4))
    assert {"tailrace.requests:2|c", "tailrace.queue_requests:3|g"} <= set(second)
    assert not [line for line in second if line.startswith("tailrace.responses:")]


def test_of_a_histogram_its_count_and_its_sum_are_sent():
    total = {"0.1": 2, "+Inf": 1, "sum_ns": 70_250_000_000}
    lines = Lines().of(taken(3, total=total))
    assert "tailrace.request_phase.count:3|c|#phase:total" in lines
    assert "tailrace.request_phase.milliseconds:70250|c|#phase:total" in lines


def test_a_datagram_has_whole_lines_and_is_no_longer_than_fits():
    lines = [f"tailrace.figure{number}:1|c" for number in range(500)]
    found = list(packets(lines))
    assert len(found) > 1
    assert max(map(len, found)) <= MAX_PACKET
    assert b"\n".join(found).decode().split("\n") == lines
    assert list(packets([])) == []


def test_the_master_sends_when_it_is_time_and_never_waits():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(10)
        sender = statsd.opened(f"127.0.0.1:{receiver.getsockname()[1]}")
        sender.tend(lambda: taken(5), 100.0)
        while b"tailrace.requests:5|c" not in receiver.recv(2000):
            pass
        assert sender.wake_at() == 100.0 + statsd.INTERVAL
        sender.tend(lambda: pytest.fail("it is not time"), 100.1)
    # Nobody listens there any more: the kernel says so at the second datagram.
    for _ in range(3):
        sender.send(lambda: taken(5))
    sender.close()


def test_a_failure_to_send_is_said_once(caplog):
    class Broken:
        def send(self, packet):
            raise OSError(101, "Network is unreachable")

    sender = statsd.Statsd(Broken())
    for _ in range(2):
        sender.send(lambda: taken(5))
    (record,) = caplog.records
    assert record.getMessage() == "--statsd: cannot send metrics: Network is unreachable; trying again"


@pytest.mark.parametrize("text", ["localhost", ":8125", "unix:/run/statsd.sock", "fd://3", "127.0.0.1:0"])
def test_statsd_needs_a_host_and_a_port(text):
    with pytest.raises(ConfigError, match=r"^--statsd .*: write host:port, as in 127\.0\.0\.1:8125$"):
        statsd.opened(text)


def test_a_host_that_is_not_found_is_one_warning(caplog, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert statsd.opened("nowhere.invalid:8125") is None
    (record,) = caplog.records
    assert record.getMessage() == (
        "--statsd: cannot send to nowhere.invalid:8125: Name or service not known; the server starts without it"
    )
