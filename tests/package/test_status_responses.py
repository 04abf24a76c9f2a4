"""What the status process tells of responses: endpoints in the order of their cost, the last slow and broken ones."""

from package.in_status import ended, endpoint

from tailrace.status import responses
from tailrace.status.clock import shown


def test_endpoints_of_all_workers_are_added_and_the_worst_is_first():
    first = [endpoint("GET /a", responses=2, paths={"one-write": 2}), endpoint("", responses=7)]
    second = [
        endpoint("GET /a", responses=3, failed=1, paths={"one-write": 1, "none": 2}),
        endpoint("GET /worst", delivery_ns=10**9, application_ns=2 * 10**9, paths={"direct": 1}),
    ]
    told = responses.endpoints([first, second], "shop:app")
    assert [each["endpoint"] for each in told["endpoints"]] == ["GET /worst", "GET /a"]
    worst, other = told["endpoints"]
    assert (worst["application_seconds"], worst["delivery_seconds"], worst["path"]) == (2.0, 1.0, "direct")
    assert 1.99 < worst["cost_seconds"] < 2.0
    assert [one["key"] for one in worst["findings"]] == ["starving"]
    assert (other["responses"], other["failed"], other["paths"]) == (5, 1, {"one-write": 3, "none": 2})
    assert (told["endpoints_omitted"], told["other_responses"]) == (0, 7)


def test_streams_of_events_cost_nothing_and_time_in_the_application_counts():
    minutes = 222 * 10**9
    rows = [
        endpoint(
            "GET /events", application_ns=minutes, event_streams=1, event_stream_ns=minutes, blocks=999, writes=999,
            paths={"direct": 1}, chunked=1, client_disconnected=1,
        ),
        endpoint("GET /report", application_ns=1_700_000_000),
        # What a slow client's socket has not taken at once is no cost of the application.
        endpoint("GET /large", body_bytes=500_000, writes=13),
    ]  # fmt: skip
    worst, *others = responses.endpoints([rows], "shop:app")["endpoints"]
    assert (worst["endpoint"], worst["cost_seconds"]) == ("GET /report", 1.7)
    assert {each["endpoint"]: each["cost_seconds"] for each in others} == {"GET /events": 0.0, "GET /large": 0.0}
    assert [each["findings"] for each in others] == [[], []]


def test_an_endpoint_has_the_mean_and_the_95th_percentile_of_the_times_of_all_workers():
    # 90 took 1 ms, 9 took 100 ms, and one more than 128 s.
    first = endpoint("GET /a", responses=90, times={"0.0010": 90}, total_ns=90 * 10**6)
    second = endpoint("GET /a", responses=10, times={"0.1015625": 9, "+Inf": 1}, total_ns=9 * 10**8 + 10**9)
    streams = endpoint("GET /events", event_streams=1, times={}, total_ns=0)
    found = responses.endpoints([[first, streams], [second]], "shop:app")["endpoints"]
    times = {each["endpoint"]: (each["mean_seconds"], each["p95_seconds"]) for each in found}
    assert times == {"GET /a": (0.0199, 0.101562), "GET /events": (None, None)}
    (late,) = responses.endpoints([[endpoint(times={"0.5": 1, "+Inf": 9}, total_ns=1)]], "shop:app")["endpoints"]
    assert late["p95_seconds"] == 128.0


def test_the_worst_twenty_endpoints_are_listed():
    rows = [endpoint(f"GET /{each}", delivery_ns=each * 10**9, paths={"direct": 1}) for each in range(100)]
    told = responses.endpoints([rows], "shop:app")
    assert [each["endpoint"] for each in told["endpoints"]] == [f"GET /{each}" for each in range(99, 79, -1)]
    assert told["endpoints_omitted"] == 80


def test_the_endpoints_that_have_grown_most_are_listed_however_little_they_cost():
    mib = 1 << 20
    rows = [endpoint(f"GET /{each}", delivery_ns=each * 10**9, paths={"direct": 1}) for each in range(30)]
    rows[3] |= {"grown_bytes": 20 * mib, "grown_responses": 1, "grown_variance": 1024**2}
    rows[4] |= {"grown_bytes": 20 * mib, "grown_responses": 1, "grown_variance": (10 * 1024) ** 2}
    told = responses.endpoints([rows], "shop:app")
    assert [each["endpoint"] for each in told["endpoints"]][19:] == ["GET /10", "GET /3"]
    assert told["endpoints_omitted"] == 9
    grown = told["endpoints"][-1]
    assert (grown["grown_bytes"], grown["grown_error_bytes"]) == (20 * mib, mib)
    assert [one["key"] for one in grown["findings"]] == ["memory-growth", "starving"]
    assert "20.0 MiB (± 2.0)" in grown["findings"][0]["what"]


def test_the_errors_of_workers_add_as_squares_and_only_the_slowest_of_all_is_said_to_be_slow():
    one = endpoint("GET /a", application_ns=6_000_000, grown_bytes=1 << 20, grown_responses=1, grown_variance=9)
    other = endpoint("GET /a", application_ns=6_000_000, grown_bytes=1 << 20, grown_responses=1, grown_variance=16)
    found = responses.endpoints([[one, endpoint("GET /b", application_ns=5_500_000)], [other]], "shop:app")["endpoints"]
    assert found[0]["grown_error_bytes"] == 5 << 10
    assert [(each["endpoint"], [hint["key"] for hint in each["hints"]]) for each in found] == [
        ("GET /a", ["before-first-block"]),
        ("GET /b", []),
    ]


def test_the_last_responses_of_all_workers_are_listed_with_when_they_ended(monkeypatch):
    monkeypatch.setattr(responses.time, "time", lambda: 1_700_000_000.0)
    first = {"slow": [ended(ago=1.0, target="/one"), ended(ago=9.0, target="/three")], "broken": []}
    second = {
        "slow": [ended(ago=5.0, target="/two", worker=2, pid=102)],
        "broken": [ended(ending="broken", target="/bad")],
    }
    told = responses.recent([first, second], "shop:app")
    assert [(each["target"], each["worker"], each["pid"]) for each in told["slow"]] == [
        ("/one", 1, 101),
        ("/two", 2, 102),
        ("/three", 1, 101),
    ]
    assert [one["key"] for one in told["slow"][0]["findings"]] == ["before-first-block"]
    assert [each["target"] for each in told["broken"]] == ["/bad"]
    assert told["broken"][0]["findings"][0]["key"] == "exception"
    assert [each["time"] for each in told["slow"]] == [shown(1_700_000_000.0 - ago) for ago in (1.0, 5.0, 9.0)]
    many = {"slow": [ended(ago=float(each)) for each in range(40)], "broken": []}
    assert len(responses.recent([many], "shop:app")["slow"]) == responses.MAX_RESPONSES
