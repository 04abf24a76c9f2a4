"""Reading `--bind`."""

import pytest
from harness.settings import server_settings

from tailrace.errors import ConfigError
from tailrace.master.status import opened
from tailrace.system.addresses import InheritedAddress, TcpAddress, UnixAddress, parse


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("127.0.0.1:8000", TcpAddress("127.0.0.1", 8000), "127.0.0.1:8000"),
        ("localhost:80", TcpAddress("localhost", 80), "localhost:80"),
        ("[::1]:8000", TcpAddress("::1", 8000), "[::1]:8000"),
        ("[fe80::1%eth0]:1", TcpAddress("fe80::1%eth0", 1), "[fe80::1%eth0]:1"),
        (":8000", TcpAddress("", 8000), ":8000"),
        ("8000", TcpAddress("127.0.0.1", 8000), "127.0.0.1:8000"),
        ("unix:/run/app.sock", UnixAddress("/run/app.sock"), "unix:/run/app.sock"),
        ("unix:///run/app.sock", UnixAddress("/run/app.sock"), "unix:/run/app.sock"),
        ("unix:app.sock", UnixAddress("app.sock"), "unix:app.sock"),
        ("unix:@app", UnixAddress("@app"), "unix:@app"),
        ("fd://3", InheritedAddress(3), "fd://3"),
    ],
)
def test_addresses(text, address, shown):
    assert parse(text) == address
    assert str(address) == shown


REFUSED = {
    "write host:port": ["", "127.0.0.1:http", "[::1]"],
    "write localhost:8000": ["localhost"],
    "write 0.0.0.0:8000": ["0.0.0.0"],
    r"as in \[::1\]:8000": ["::1"],
    r"as in \[::1\]:9000": ["::1:9000"],
    r"as in \[2001:db8::2\]:65000": ["2001:db8::2:65000"],
    r"as in \[fe80::1:2\]:8000": ["fe80::1:2"],
    "omit the scheme": ["http://127.0.0.1:8000"],
    "at most 65535": ["127.0.0.1:70000", "99999"],
    "the path of a socket": ["unix:", "unix:/run/", "unix:@"],
    "at most 107 bytes": ["unix:/" + "x" * 108],
    "number of an open descriptor": ["fd://", "fd://-1", "fd://\u00b2"],
}


@pytest.mark.parametrize(("remedy", "text"), [(remedy, text) for remedy in REFUSED for text in REFUSED[remedy]])
def test_what_is_no_address_is_refused_with_the_remedy(remedy, text):
    with pytest.raises(ConfigError, match=remedy) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("localhost", "write localhost:9000"),
        ("http://localhost", "as in 127.0.0.1:9000"),
        ("::1", r"as in \[::1\]:9000"),
        ("fe80::1:2", r"as in \[fe80::1:2\]:9000"),
    ],
)
def test_the_address_of_another_option_is_proposed_with_another_port(text, remedy):
    with pytest.raises(ConfigError, match=f"^--status '{text}': not an address; .*{remedy}$"):
        opened(server_settings(status=text), kept=lambda address: None)
