"""Reading `--bind`: addresses with a protocol and options."""

import socket

import pytest

from tailrace.errors import BindError, ConfigError
from tailrace.system import sockets
from tailrace.system.addresses import InheritedAddress, TcpAddress, UnixAddress
from tailrace.system.binds import Bind, parse, parse_all, parse_published


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("127.0.0.1:8000", Bind(TcpAddress("127.0.0.1", 8000))),
        ("unix:///run/app.sock", Bind(UnixAddress("/run/app.sock"))),
        ("fd://3", Bind(InheritedAddress(3))),
        ("http://127.0.0.1:8000", Bind(TcpAddress("127.0.0.1", 8000))),
        ("HTTP://[::1]:8000/", Bind(TcpAddress("::1", 8000))),
        ("http://:80", Bind(TcpAddress("", 80))),
        ("https://127.0.0.1:8443?proxy=v2", Bind(TcpAddress("127.0.0.1", 8443), "https", "v2")),
        ("https+unix:/run/app.sock", Bind(UnixAddress("/run/app.sock"), "https")),
        ("http+unix:/run/app.sock", Bind(UnixAddress("/run/app.sock"))),
        ("http+unix:///run/app.sock", Bind(UnixAddress("/run/app.sock"))),
        ("http+unix:@app", Bind(UnixAddress("@app"))),
        ("uwsgi://127.0.0.1:9000", Bind(TcpAddress("127.0.0.1", 9000), "uwsgi")),
        ("uwsgi+unix:app.sock", Bind(UnixAddress("app.sock"), "uwsgi")),
        ("uwsgi+fd://3", Bind(InheritedAddress(3), "uwsgi")),
        ("fd://3?proxy=any", Bind(InheritedAddress(3), proxy="any")),
        (":80?proxy=v2&backlog=4096", Bind(TcpAddress("", 80), proxy="v2", backlog=4096)),
        ("unix:/a.sock?mode=660", Bind(UnixAddress("/a.sock"), mode=0o660)),
        ("uwsgi+unix:/a.sock?mode=0o7&proxy=v1", Bind(UnixAddress("/a.sock"), "uwsgi", "v1", 0o7)),
    ],
)
def test_a_bind_has_an_address_a_protocol_and_options(text, bind):
    assert parse(f" {text} ") == [bind]


def test_localhost_is_an_address_in_each_family():
    assert parse_all(["LocalHost:80?proxy=v1", "8000"]) == [
        Bind(TcpAddress("127.0.0.1", 80), proxy="v1"),
        Bind(TcpAddress("::1", 80), proxy="v1", is_second=True),
        Bind(TcpAddress("127.0.0.1", 8000)),
    ]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "write host:port"),
        ("http://", "write host:port"),
        ("http://127.0.0.1", "write 127.0.0.1:8000"),
        ("http://127.0.0.1:8000/app", "--root-path"),
        ("uwsgis://127.0.0.1:8000", "uwsgis is unknown; write http://host:port, https://host:port"),
        ("fcgi://127.0.0.1:8000", "fcgi is unknown; write http://host:port"),
        ("http+tcp://127.0.0.1:8000", r"http\+tcp is unknown; write http://host:port"),
        ("http+unix:", "the path of a socket"),
        ("uwsgi+fd://x", "number of an open descriptor"),
        ("unix:/a.sock?", "not an option of an address; choose from"),
        ("unix:/a.sock?mode", "not an option of an address; choose from"),
        ("unix:/a.sock?owner=me", "'owner=me' is not an option of an address; choose from"),
        ("unix:/a.sock?mode=668", "must be octal permission bits"),
        ("unix:/a.sock?mode=660&mode=660", "mode is given twice"),
        ("unix:@a?mode=660", "mode applies only to UNIX sockets with a file"),
        (":80?mode=660", "mode applies only to UNIX sockets with a file"),
        (":80?proxy=v3", "proxy must be v1, v2 or any"),
        (":80?backlog=0", "from 1 to 65535"),
        (":80?backlog=65536", "from 1 to 65535"),
        (":80?backlog=-1", "from 1 to 65535"),
    ],
)
def test_what_is_no_bind_is_refused_with_the_remedy(text, remedy):
    with pytest.raises(ConfigError, match=remedy) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_publications_have_addresses_of_their_own(tmp_path):
    with sockets.bound(parse_published(["127.0.0.1:0", f"unix:{tmp_path}/publish?mode=660", ":0"])) as listeners:
        first, second, third = listeners
        assert [each.publishes for each in listeners] == [True, True, True]
        assert first.url == f"http://127.0.0.1:{first.socket.getsockname()[1]}/publish/"
        assert second.shown == f"unix:{tmp_path}/publish (mode 660)"
        assert [each.is_local for each in listeners] == [True, True, False]
        assert third.shown.endswith("/publish/ and every other address of this machine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("https://127.0.0.1:5561", "cannot arrive by https; write 127.0.0.1:5561"),
        ("uwsgi+unix:/a.sock", "cannot arrive by uwsgi; write unix:/a.sock"),
        ("127.0.0.1:5561?proxy=v2", "cannot begin with a PROXY header; write 127.0.0.1:5561"),
        ("localhost", "write localhost:5561"),
        (":80?backlog=0", "backlog must be"),
    ],
)
def test_an_address_for_publications_that_cannot_be_is_refused_with_the_remedy(text, said):
    with pytest.raises(ConfigError, match=f"^--publish-bind '.*{said}"):
        parse_published([text])


def test_an_error_of_the_system_names_the_option():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(BindError, match="choose another port with --publish-bind"),
        sockets.bound(parse_published([f"127.0.0.1:{taken.getsockname()[1]}"])),
    ):
        pytest.fail("not reached")


def test_localhost_with_any_port_has_one_port_in_both_families():
    with sockets.bound(parse("localhost:0")) as (first, second):
        port = first.socket.getsockname()[1]
        assert [first.url, second.url] == [f"http://127.0.0.1:{port}", f"http://[::1]:{port}"]


def test_localhost_whose_port_is_taken_in_one_family_is_an_error():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(BindError, match=rf"\[::1\]:{port}: port {port} is in use"),
            sockets.bound(parse(f"localhost:{port}")),
        ):
            pytest.fail("not reached")


def test_localhost_without_ipv6_is_one_address(monkeypatch):
    monkeypatch.setattr(sockets, "_has", lambda host: False)
    with sockets.bound(parse("localhost:0")) as listeners:
        assert [listener.socket.family for listener in listeners] == [socket.AF_INET]


def test_each_bind_has_its_options(tmp_path):
    texts = [f"unix:{tmp_path}/a?mode=600", f"uwsgi+unix:{tmp_path}/b?proxy=v2&mode=640"]
    with sockets.bound(parse_all(texts)) as listeners:
        modes = [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"]
        assert modes == [0o600, 0o640]
        assert [(each.protocol, each.proxy) for each in listeners] == [("http", None), ("uwsgi", "v2")]
        assert [each.url for each in listeners] == [f"unix:{tmp_path}/a", f"uwsgi+unix:{tmp_path}/b"]
        assert [each.shown for each in listeners] == [
            f"unix:{tmp_path}/a (mode 600)",
            f"uwsgi+unix:{tmp_path}/b (mode 640) behind a PROXY header",
        ]


def test_an_address_that_is_every_one_is_shown_as_such():
    with sockets.bound(parse(":0?proxy=v1")) as (listener,):
        port = listener.socket.getsockname()[1]
        assert listener.shown == (
            f"http://127.0.0.1:{port} and every other address of this machine behind a PROXY header"
        )


def test_the_backlog_of_a_bind_is_that_of_its_socket():
    with sockets.bound(parse("127.0.0.1:0?backlog=1")) as (listener,):
        address = listener.socket.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(address)
        connected = [client for client in waiting if _is_connected(client)]
        for client in waiting:
            client.close()
        # The kernel takes one more than the backlog.
        assert len(connected) == 2


def _is_connected(client):
    try:
        client.getpeername()
    except OSError:
        return False
    return True
