"""Which Host fields the status process answers: none that a web page could have."""

import pytest

from tailrace.status import hosts
from tailrace.system.addresses import parse

ANYWHERE = parse(":9000")


@pytest.mark.parametrize(
    "host",
    [
        *(None, "", "localhost", "localhost:9000", "LOCALHOST", "localhost."),
        *("127.0.0.1:9000", "10.2.3.4", "[::1]:9000", "[fe80::1%eth0]:9000"),
        *("app:9000", "box.local:9000", "tailrace.shop.svc:9000", "tailrace.shop.svc.cluster.local", "a.b.internal"),
    ],
)
def test_names_that_nobody_can_register_are_answered(host):
    assert hosts.is_answered(host, ANYWHERE)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:9000",
            "EVIL.example.",
            "127.0.0.1.evil.example",
            "1.2.3",
            "a.localhost.evil.example",
        ),
        *("[evil.example]:9000", "localhost.evil:9000", "evil.example\t", "0x7f.1"),
    ],
)
def test_names_that_a_web_page_may_have_are_not(host):
    assert not hosts.is_answered(host, ANYWHERE)


def test_the_name_that_is_bound_is_answered_and_a_unix_socket_answers_every_name():
    bound = parse("Status.shop.example:9000")
    assert hosts.is_answered("status.SHOP.example:9000", bound)
    assert not hosts.is_answered("shop.example:9000", bound)
    assert hosts.is_answered("evil.example", parse("unix:/run/status.sock"))


def test_the_refusal_is_one_line_with_the_remedy():
    said = hosts.refusal("evil.example:9000\x1b")
    assert said.count("\n") == 1
    assert said.isascii()
    assert "use the IP address or localhost" in said
    assert "--status evil.example:PORT" in said
