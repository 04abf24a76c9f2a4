"""Addresses that a server listens on, and the descriptors that processes which it starts inherit."""

import re
import signal
import socket
import stat
from pathlib import Path

from harness.addresses import Address, free_address
from harness.server import Server
from harness.wire import Client
from server.probes import eventually, pattern, request


def serves(address):
    with Client(address) as client:
        assert client.ask(request("/generator?size=3000000&block=700")).body == pattern(3_000_000)


def has_ipv6():
    try:
        return free_address("::1")
    except OSError:
        return None


def test_several_addresses_of_all_kinds(tmp_path):
    own, its_own, masked = (tmp_path / f"{name}.sock" for name in ("parent", "app", "masked"))
    first, last = free_address(), free_address()
    ipv6 = [address] if (address := has_ipv6()) else []
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(own))
        unix.listen()
        passed = [tcp.fileno(), unix.fileno()]
        # The last one that is bound tells that all are.
        values = [*(f"fd://{each}" for each in passed), f"unix:{its_own}?mode=640", f"unix:{masked}", "127.0.0.1:0"]
        values = [first.bind, *(each.bind for each in ipv6), *values, last.bind]
        binds = [argument for value in values for argument in ("--bind", value)]
        with Server("srv_shapes:app", *binds, address=last, pass_fds=passed, umask="027") as server:
            assert stat.S_ISSOCK(its_own.stat().st_mode)
            assert stat.S_IMODE(its_own.stat().st_mode) == 0o640
            assert stat.S_IMODE(masked.stat().st_mode) == 0o750, "what the umask leaves"
            known = [
                first,
                *ipv6,
                Address(*tcp.getsockname()),
                Address(path=str(own)),
                Address(path=str(its_own)),
                last,
            ]

            def any_port():
                found = {int(port) for port in re.findall(r"listening on http://127\.0\.0\.1:([0-9]+)", server.log)}
                return found - {each.port for each in known}

            (port,) = eventually(any_port, "the port in the log")
            for address in (*known, Address("127.0.0.1", port)):
                serves(address)
    assert own.exists(), "its owner is the parent"
    assert not its_own.exists(), "the socket file goes with the server"


def test_a_process_that_the_application_starts_has_the_default_signal_mask_and_no_socket_of_ours():
    ours = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    inherited = int(ours["SigIgn"], 16) & ~(1 << signal.SIGPIPE - 1) & ~(1 << signal.SIGXFSZ - 1)
    with Server("srv_shapes:app", threads=2) as server:
        for _ in range(3):
            status = dict(line.split(":\t") for line in server.get("/mask").body.decode().splitlines())
            assert int(status["SigBlk"], 16) == 0
            # Python ignores SIGPIPE and SIGXFSZ and, before the child is run, restores them. Beyond what whoever
            # started these tests ignores already, nothing may be ignored.
            assert int(status["SigIgn"], 16) & ~inherited == 0
        held = [target.decode() for target in server.get("/descriptors").body.splitlines()]
        assert not [target for target in held if "socket" in target or "eventpoll" in target or "eventfd" in target]
