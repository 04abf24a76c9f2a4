"""Listening sockets: opened, inherited, removed."""

import errno
import os
import socket
import stat

import pytest

from tailrace.errors import BindError
from tailrace.system import sockets
from tailrace.system.addresses import InheritedAddress, TcpAddress, UnixAddress, parse
from tailrace.system.binds import parse_all
from tailrace.system.sockets import bind, bound


def test_port_0_is_given_a_number_that_is_shown():
    listener = bind(parse("127.0.0.1:0"))
    port = listener.socket.getsockname()[1]
    assert port > 0
    assert listener.url == f"http://127.0.0.1:{port}"
    assert not listener.everywhere
    listener.close()


def test_a_tcp_listener_has_its_options_and_hands_nodelay_on():
    listener = bind(parse("127.0.0.1:0"), backlog=7)
    with socket.create_connection(listener.socket.getsockname()) as client:
        accepted, _ = listener.socket.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert listener.socket.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert not listener.socket.get_inheritable()
        client.close()
    listener.close()


def test_every_address_of_both_families_shares_a_port():
    four = bind(parse(":0"))
    six = bind(TcpAddress("::", four.socket.getsockname()[1]))
    assert four.everywhere
    assert six.everywhere
    assert four.url.startswith("http://127.0.0.1:")
    assert six.url.startswith("http://[::1]:")
    four.close()
    six.close()


def test_a_busy_port_is_named_with_the_remedy():
    first = bind(parse("127.0.0.1:0"))
    port = first.socket.getsockname()[1]
    with pytest.raises(BindError) as caught:
        bind(TcpAddress("127.0.0.1", port))
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert f"ss -ltnp 'sport = :{port}'" in str(caught.value)
    assert "\n" not in str(caught.value)
    first.close()


def test_a_reserved_port_is_explained(monkeypatch):
    def refuse(self, address):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(sockets.socket, "socket", type("Refusing", (socket.socket,), {"bind": refuse}))
    with pytest.raises(BindError, match=r"port 80 is reserved for root; .*CAP_NET_BIND_SERVICE"):
        bind(TcpAddress("127.0.0.1", 80))


def test_a_unix_socket_is_made_with_its_mode_and_removed(tmp_path):
    path = tmp_path / "app.sock"
    listener = bind(UnixAddress(str(path)), mode=0o640)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert listener.url == f"unix:{path}"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()
    assert not path.exists()


def test_a_unix_socket_is_removed_from_where_it_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listener = bind(UnixAddress("app.sock"))
    monkeypatch.chdir("/")
    listener.close()
    assert not (tmp_path / "app.sock").exists()


def test_a_forked_child_leaves_the_socket_file(tmp_path):
    path = tmp_path / "app.sock"
    listener = bind(UnixAddress(str(path)))
    child = os.fork()
    if child == 0:
        listener.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert path.exists()
    listener.close()


def test_the_file_of_a_successor_is_left_alone(tmp_path):
    path = tmp_path / "app.sock"
    first = bind(UnixAddress(str(path)))
    path.rename(tmp_path / "kept")  # so that the second file cannot get the first one's inode
    second = bind(UnixAddress(str(path)))
    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()


def test_a_stale_socket_is_replaced(tmp_path):
    path = tmp_path / "app.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    bind(UnixAddress(str(path))).close()


def test_a_socket_with_a_server_behind_it_is_not_replaced(tmp_path):
    path = tmp_path / "app.sock"
    first = bind(UnixAddress(str(path)))
    with pytest.raises(BindError, match="another server is listening there"):
        bind(UnixAddress(str(path)))
    assert path.exists()
    first.close()


def test_a_socket_with_a_full_backlog_counts_as_listening(tmp_path):
    path = tmp_path / "app.sock"
    first = bind(UnixAddress(str(path)), backlog=0)
    waiting = []
    while True:
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        waiting.append(client)
        if client.connect_ex(str(path)) == errno.EAGAIN:
            break
    with pytest.raises(BindError, match="another server is listening there"):
        bind(UnixAddress(str(path)))
    for client in waiting:
        client.close()
    first.close()


def test_another_kind_of_file_is_not_replaced(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("dear diary")
    with pytest.raises(BindError, match="is not a socket"):
        bind(UnixAddress(str(path)))
    assert path.read_text() == "dear diary"


def test_an_abstract_socket_has_no_file():
    listener = bind(UnixAddress(f"@tailrace-test-{os.getpid()}"))
    assert listener.url == f"unix:@tailrace-test-{os.getpid()}"
    listener.close()


def test_an_inherited_listener_is_used_and_left_open():
    with socket.create_server(("127.0.0.1", 0)) as opened:
        listener = bind(InheritedAddress(opened.fileno()))
        assert listener.url == f"http://127.0.0.1:{opened.getsockname()[1]}"
        listener.close()
        socket.create_connection(opened.getsockname()).close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (TcpAddress("192.0.2.1", 0), r"192\.0\.2\.1:0: this machine does not have that address"),
        (TcpAddress("no such host", 80), "the host 'no such host' has no address"),
        (UnixAddress("/absent/app.sock"), "the directory /absent does not exist"),
        (InheritedAddress(987), "is not open"),
    ],
)
def test_why_an_address_cannot_be_bound_is_said(address, said):
    with pytest.raises(BindError, match=said):
        bind(address)


def test_a_descriptor_that_is_no_listener_is_explained(tmp_path):
    with (tmp_path / "file").open("w") as file, pytest.raises(BindError, match="is not a socket"):
        bind(InheritedAddress(file.fileno()))
    with socket.socket() as idle:
        with pytest.raises(BindError, match="not a listening stream socket"):
            bind(InheritedAddress(idle.fileno()))
        assert idle.getsockname() is not None, "still open"


def test_when_the_second_address_fails_the_first_is_closed(tmp_path):
    path = tmp_path / "app.sock"
    with pytest.raises(BindError), bound(parse_all([f"unix:{path}", "fd://987"])):
        pytest.fail("not reached")
    assert not path.exists()
