import pytest

from tailrace.process.errors import ServerError
from tailrace.worker import core


def test_a_server_that_ended_by_a_fault_of_its_own_says_so():
    class Core:
        def __init__(self, fault):
            self.fault = lambda: fault

    core.check(Core(None))
    with pytest.raises(ServerError, match=r"please report it: a server thread panicked: here \(reactor.rs:7\)"):
        core.check(Core("a server thread panicked: here (reactor.rs:7)"))
