"""What tools/request_path.py reads from a dump of callgrind."""

import importlib
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
# Two requests. `check` was called once, so it is not on the path; `poll` runs all the time, so nobody calls it.
DUMP = """
positions: line
events: Ir
fl=crates/server/src/server.rs
fn=tailrace_server::server::Server::poll
10 5
cfi=crates/server/src/driver.rs
cfn=tailrace_server::driver::Driver::read::h0123456789abcdef
calls=2 20
11 30
cfi=crates/server/src/timers.rs
cfn=tailrace_server::timers::check
calls=1 5
12 30

fl=crates/server/src/driver.rs
fn=tailrace_server::driver::Driver::read::h0123456789abcdef
20 5
cfi=/rust/std/sync/mutex.rs
cfn=std::sync::poison::mutex::Mutex<T>::lock::h0123456789abcdef
calls=2 1
21 3
fi=/rust/core/ops/function.rs
cfi=crates/server/src/driver.rs
cfn=tailrace_server::driver::Driver::read::{{closure}}::h0123456789abcdef
calls=2 22
5 3
fe=crates/server/src/driver.rs
cfi=crates/wsgi/src/call.rs
cfn=<wsgi::call::Call as wsgi::call::Calls>::call
calls=4 30
24 3

fn=tailrace_server::driver::Driver::read::{{closure}}::h0123456789abcdef
22 5
cfi=/rust/core/sync/atomic.rs
cfn=core::sync::atomic::AtomicUsize::load
calls=6 1
22 5

fl=/rust/std/sync/mutex.rs
fn=std::sync::poison::mutex::Mutex<T>::lock::h0123456789abcdef
1 5
cfi=/rust/core/sync/atomic.rs
cfn=core::sync::atomic::AtomicU32::compare_exchange
calls=2 1
1 5
"""


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("request_path")


def test_the_path_has_what_each_request_passes_callers_first(tool):
    found = tool.passed(tool.parse(DUMP), 2)
    assert [function.name for function in found.functions] == [
        "tailrace_server::driver::Driver::read",
        "<wsgi::call::Call as wsgi::call::Calls>::call",
    ]
    assert found.files == ["crates/server/src/driver.rs", "crates/wsgi/src/call.rs"]


def test_locks_and_atomic_operations_are_those_of_our_own_functions_and_their_closures(tool):
    found = tool.passed(tool.parse(DUMP), 2)
    read = "tailrace_server::driver::Driver::read"
    assert (found.locks, found.atomics, found.closures) == ({read: 1}, {read: 3}, 1)
    assert found.row() == [2, 2, 1, 1, 3, 0]
    assert f"    {read}  (lock 1, atomic 3)" in tool.listing("one GET", found)


def test_a_block_is_the_difference_of_two_traces(tool):
    few = tool.parse(DUMP)
    many = tool.parse(DUMP.replace("calls=4 30", "calls=8 30"))
    found = tool.passed(many, 4, few)
    assert found.row() == [1, 1, 0, 0, 0, 0]


def test_compressed_names_are_those_of_the_whole_ones(tool):
    whole = (
        "fl=crates/a.rs\nfn=a\ncfi=crates/b.rs\ncfn=b\ncalls=1 1\n1 1\nfl=crates/b.rs\nfn=b\ncfn=c\ncalls=3 1\n1 1\n"
    )
    short = (
        "fl=(1) crates/a.rs\nfn=(1) a\ncfi=(2) crates/b.rs\ncfn=(2) b\ncalls=1 1\n1 1\n"
        "fl=(2)\nfn=(2)\ncfn=(3) c\ncalls=3 1\n1 1\n"
    )
    assert tool.parse(short).edges == tool.parse(whole).edges


@pytest.mark.parametrize(
    "name", ["std::sync::poison::rwlock::RwLock<T>::read", "std::sync::poison::mutex::Mutex<T>::try_lock"]
)
def test_locks_are_recognized(tool, name):
    dump = f"fl=crates/a.rs\nfn=a\ncfi=/std.rs\ncfn={name}\ncalls=1 1\n1 1\n"
    assert tool.passed(tool.parse(dump), 1).locks == {"a": 1}


def test_what_the_clock_causes_is_left_out_also_from_functions_that_requests_call(tool):
    load = "core::sync::atomic::AtomicUsize::load"
    dump = "".join(
        f"fl=crates/a.rs\nfn={caller}\ncfi={'/core.rs' if called == load else 'crates/a.rs'}\ncfn={called}\n"
        f"calls={number} 1\n1 1\n"
        for caller, called, number in (
            ("loop", "a::Server::publish", 10),
            ("loop", "read", 10),
            ("a::Server::publish", "length", 30),
            ("a::Server::publish", "write", 10),
            ("read", "length", 10),
            ("length", load, 40),
        )
    )
    found = tool.passed(tool.parse(dump), 10)
    assert [function.name for function in found.functions] == ["read", "length"]
    assert found.atomics == {"length": 1}
