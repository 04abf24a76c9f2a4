"""What viewers of the live page are sent: the history, the state once a second, and when it ends."""

import json
import threading

import pytest
from server.probes import eventually

from tailrace.status import feed
from tailrace.status.feed import Feed


class Server:
    """What the feed looks at. Each look is a second later."""

    def __init__(self):
        self.looks = []
        self.fails = self.holds = False

    def buckets(self):
        """A request ends before each look: one of a second, one of two seconds, and so on."""
        numbers = range(1, len(self.looks) + 1)
        return {str(float(number)): number for number in numbers} | {"+Inf": len(self.looks)}

    def __call__(self, with_requests):
        if self.fails:
            raise OSError("the master has not finished writing its state")
        self.looks.append(with_requests)
        return {
            "time": f"2023-11-14T22:13:{len(self.looks):02}.000+00:00",
            "master": 99,
            "totals": {"requests": len(self.looks)},
            "paths": {"one-write": 1},
            "held": {"pid": 7, "published": 3, "delivered": 9, "connections": 2} if self.holds else None,
            "latency": {"total": {"count": len(self.looks), "sum_seconds": 0.0, "buckets": self.buckets()}},
            "responses": {"classes": {"2xx": 1}},
            "workers": [{"rss_bytes": 5}, {"rss_bytes": None}],
            "requests": ["\n<script>"] if with_requests else [],
        }


def events(sent):
    """Names and data of server-sent events."""
    found = []
    for event in sent.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_a_viewer_gets_the_history_and_then_the_state_again_and_again():
    server = Server()
    told = Feed(server, seconds=0.01)
    told.start()
    eventually(lambda: len(server.looks) > 3, "samples without a viewer")
    assert not any(server.looks)
    viewer = told.viewer()
    (history, samples), (name, state) = events(next(viewer))
    assert (history, name) == ("history", "state")
    counts = [sample["totals"]["requests"] for sample in samples]
    # One a look of the feed; the look for the viewer is another one.
    assert counts == sorted(set(counts))
    assert state["sample"]["totals"]["requests"] not in counts[:-1]
    assert state["sample"]["rss_bytes"] == 5
    assert state["document"]["requests"] == ["\n<script>"]
    following = [events(next(viewer))[0][1]["sample"]["totals"]["requests"] for _ in range(3)]
    assert following == sorted(set(following))
    viewer.close()
    told.stop()


def test_the_history_is_of_two_minutes():
    server = Server()
    told = Feed(server)
    for _ in range(200):
        told._take(with_requests=False, is_regular=True)
    ((_, samples), _) = events(next(told.viewer()))
    assert len(samples) == feed.KEPT == 121
    assert [sample["totals"]["requests"] for sample in samples] == list(range(80, 201))


def test_a_sample_has_the_counters_of_the_process_that_holds_connections_while_there_is_one():
    server = Server()
    told = Feed(server)
    for server.holds in (False, True):
        told._take(with_requests=False, is_regular=True)
    ((_, samples), _) = events(next(told.viewer()))
    assert [sample.get("held") for sample in samples] == [None, {"pid": 7, "published": 3, "delivered": 9}]


def test_the_percentiles_of_a_sample_are_those_of_the_last_ten_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(feed.time, "monotonic", lambda: now[0])
    told = Feed(Server())
    for second in range(30):
        now[0] = float(second)
        told._take(with_requests=False, is_regular=True)
    ((_, samples), (_, state)) = events(next(told.viewer()))
    shown = [sample["latency"]["total"] for sample in samples]
    assert shown[0] is None
    assert [each["p50"] for each in (shown[1], shown[4], shown[29])] == [2.0, 3.0, 25.0]
    assert shown[29]["p99"] == 30.0
    assert "latency" not in state["document"]


def test_a_look_for_a_new_viewer_is_neither_in_the_history_nor_sent_to_others(monkeypatch):
    monkeypatch.setattr(feed, "_FRESH", 0.0)
    server = Server()
    told = Feed(server)
    told._take(with_requests=True, is_regular=True)
    first, second = told.viewer(), told.viewer()
    (_, samples), (_, state) = events(next(first))
    assert ([sample["totals"]["requests"] for sample in samples], state["sample"]["totals"]["requests"]) == ([1], 3)
    next(second)
    assert told.next(1, 0.0) is None
    told._take(with_requests=True, is_regular=True)
    assert [events(next(viewer))[0][1]["sample"]["totals"]["requests"] for viewer in (first, second)] == [4, 4]


def test_a_sample_is_encoded_once_however_many_viewers_there_are(monkeypatch):
    encoded = []
    monkeypatch.setattr(feed, "_json", lambda data: encoded.append(data) or json.dumps(data))
    told = Feed(Server())
    for _ in range(50):
        told._take(with_requests=True, is_regular=True)
    before = len(encoded)
    for _ in range(5):
        next(told.viewer())
    assert len(encoded) == before


def test_viewers_share_one_look():
    server = Server()
    told = Feed(server)
    viewers = [told.viewer() for _ in range(feed.MAX_VIEWERS)]
    assert len({next(viewer) for viewer in viewers}) == 1
    assert server.looks == [True]


def test_a_viewer_too_many_is_sent_away_until_another_one_leaves():
    told = Feed(Server())
    viewers = [told.viewer() for _ in range(feed.MAX_VIEWERS)]
    assert told.viewer() is None
    # The server may close a response that it has not asked for a block, and closes each once.
    viewers[0].close()
    viewers[0].close()
    assert told.viewer() is not None
    assert told.viewer() is None


def test_a_state_that_cannot_be_read_takes_no_place_and_no_sample():
    server = Server()
    told = Feed(server, seconds=0.01)
    server.fails = True
    for _ in range(feed.MAX_VIEWERS + 1):
        with pytest.raises(OSError, match="not finished"):
            told.viewer()
    told.start()
    server.fails = False
    eventually(lambda: server.looks, "it samples again")
    told.stop()


def test_a_page_is_to_connect_again_after_some_time(monkeypatch):
    monkeypatch.setattr(feed, "LONGEST", 0.0)
    told = Feed(Server())
    viewer = told.viewer()
    assert events(next(viewer))[0][0] == "history"
    assert events(next(viewer)) == [("again", None)]
    with pytest.raises(StopIteration):
        next(viewer)
    assert told._viewers == 0


def test_the_end_of_the_server_ends_the_responses():
    told = Feed(Server(), seconds=3600)
    viewer = told.viewer()
    next(viewer)
    ended = threading.Event()

    def watch():
        with pytest.raises(StopIteration):
            next(viewer)
        ended.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    told.stop()
    assert ended.wait(10)
    watcher.join()
