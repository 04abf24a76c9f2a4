"""The endpoints that are named when a worker that has grown is replaced."""

import pytest

from tailrace.master import growth

MIB = 1 << 20


def endpoint(name, grown, responses, error=0):
    variance = (error // 1024) ** 2
    return {"endpoint": name, "grown_bytes": grown, "grown_responses": responses, "grown_variance": variance}


@pytest.mark.parametrize(
    ("endpoints", "said"),
    [
        ([], ""),
        ([endpoint("GET /", MIB - 1, 5), endpoint("GET /b", -50 * MIB, 5)], ""),
        (
            [endpoint("GET /", 2 * MIB, 200), endpoint("POST /import", 328 * MIB, 8), endpoint("GET /b", 40 * MIB, 0)],
            "; it grew with POST /import (+41.0 MiB a response, 328.0 MiB in total), GET /b (+40.0 MiB a response, "
            "40.0 MiB in total)",
        ),
        # It is uncertain which of them caused the growth.
        (
            [endpoint("GET /", 20 * MIB, 9, 11 * MIB), endpoint("GET /b", 9 * MIB, 9, 4 * MIB)],
            "; it grew with GET /b (+1.0 MiB a response, 9.0 MiB in total)",
        ),
        ([endpoint("", 2 * MIB, 1000)], "; it grew with other endpoints (+2.0 KiB a response, 2.0 MiB in total)"),
        (
            [endpoint(f"GET /{number}", 10 * MIB, 10) for number in range(5)],
            "; it grew with " + ", ".join(f"GET /{each} (+1.0 MiB a response, 10.0 MiB in total)" for each in range(3)),
        ),
    ],
)
def test_those_that_have_caused_most_are_named(endpoints, said):
    assert growth.named(endpoints) == said
