"""Load by wrk: what it counts."""

from collections.abc import Iterator

import pytest
from harness.server import Server
from harness.tools import need_tool
from tailrace_compare import load, machine
from tailrace_compare.work import Work

CORE = machine.CORES[-1]

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    need_tool("wrk")
    with Server("srv_shapes:app") as server:
        yield f"http://{server.address.host}:{server.address.port}"


@pytest.mark.parametrize("close", [False, True], ids=["kept", "closed"])
def test_answers_times_and_processor_time_are_counted(url: str, close: bool) -> None:
    found = load.run(Work(f"{url}/list?size=5000", 4, 1.0, CORE, close=close))
    assert (found.errors, found.detail) == (0, "")
    assert found.answers == pytest.approx(found.rate * found.seconds, abs=1)
    assert found.answers > 0
    assert found.p50 is not None
    assert found.p99 is not None
    assert 0 < found.p50 <= found.p99
    assert 0 < found.processor < 3 * found.seconds


def test_refusals_are_errors_and_not_in_the_rate(url: str) -> None:
    found = load.run(Work(url, 4, 1.0, CORE, fields=("Transfer-Encoding: x",)))
    assert found.rate == 0
    assert found.answers > 0
    assert f"{found.answers} status" in found.detail


def test_uploads_are_sent_whole(url: str) -> None:
    found = load.run(Work(f"{url}/", 4, 1.0, CORE, upload=True))
    assert (found.errors, found.detail) == (0, "")
    assert found.answers > 0


def test_a_port_where_nobody_listens_is_an_error() -> None:
    found = load.run(Work("http://127.0.0.1:1/", 2, 1.0, CORE))
    assert found.rate == 0
    assert found.errors > 0
