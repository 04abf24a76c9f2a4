"""Making and ending the core."""

import pytest

from tailrace.process.errors import ServerError
from tailrace.worker import core


def test_an_internal_error_that_ended_the_server_is_raised():
    class Core:
        def __init__(self, fault):
            self.fault = lambda: fault

    core.check(Core(None))
    with pytest.raises(ServerError, match=r"please report it: a server thread panicked: here \(reactor.rs:7\)"):
        core.check(Core("a server thread panicked: here (reactor.rs:7)"))
