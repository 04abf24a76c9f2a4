"""Addresses that a server listens on, and the descriptors that processes which it starts inherit."""

import os
import re
import signal
import socket
import stat
from pathlib import Path

import pytest
from harness.addresses import Address, free_address
from harness.server import Server
from harness.tools import missing
from harness.wire import Client
from server.probes import eventually, pattern, request


def pong(address):
    with Client(address) as client:
        client.send(request("/"))
        assert client.response().body == b"pong"


def beside(path, **options):
    """A server on a UNIX socket, and on a TCP address that tells when it has come up: the last one that is bound."""
    tcp = free_address()
    return Server("srv_shapes:app", "--bind", f"unix:{path}", "--bind", tcp.bind, address=tcp, **options)


def test_a_unix_socket_with_its_mode(tmp_path):
    path = tmp_path / "app.sock"
    with beside(path, socket_mode="0640"):
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        pong(Address(path=str(path)))
        with Client(Address(path=str(path))) as client:
            client.send(request("/generator?size=3000000&block=700"))
            assert client.response().body == pattern(3_000_000)
    assert not path.exists(), "the socket file goes with the server"


@pytest.mark.parametrize("umask, mode", [("0027", 0o750), ("0", 0o777)])
def test_a_unix_socket_under_a_umask(tmp_path, umask, mode):
    path = tmp_path / "app.sock"
    with beside(path, umask=umask):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        pong(Address(path=str(path)))


def test_a_socket_that_the_parent_opened():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())
        number = listener.fileno()
        os.set_inheritable(number, True)
        with Server("srv_shapes:app", "--bind", f"fd://{number}", address=address, pass_fds=[number]) as server:
            pong(address)
            with server.client() as client:
                client.send(request("/generator?size=30000&block=70"))
                assert client.response().body == pattern(30_000)


def test_a_unix_socket_that_the_parent_opened(tmp_path):
    path = str(tmp_path / "parent.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        number = listener.fileno()
        address = Address(path=path)
        with Server("srv_shapes:app", "--bind", f"fd://{number}", address=address, pass_fds=[number]):
            pong(address)
    assert Path(path).exists(), "its owner is the parent"


def test_several_addresses_of_all_kinds(tmp_path):
    first, second = free_address(), free_address()
    path = tmp_path / "app.sock"
    binds = ["--bind", first.bind, "--bind", f"unix:{path}", "--bind", second.bind]
    with Server("srv_shapes:app", *binds, address=second):
        for address in (first, second, Address(path=str(path))):
            for _ in range(3):
                pong(address)


def test_ipv6():
    try:
        address = free_address("::1")
    except (OSError, RuntimeError):
        missing("this machine has no IPv6")
    with Server("srv_shapes:app", address=address):
        pong(address)


def test_port_0_is_a_free_port_that_the_log_names():
    helper = free_address()
    with Server("srv_shapes:app", "--bind", helper.bind, "--bind", "127.0.0.1:0", address=helper) as server:

        def others():
            ports = {int(port) for port in re.findall(r"listening on http://127\.0\.0\.1:([0-9]+)", server.log)}
            return ports - {helper.port}

        (port,) = eventually(others, "the port in the log")
        assert port > 0
        pong(Address("127.0.0.1", port))


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
