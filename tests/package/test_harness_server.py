"""A server of the tests that does not start says why, and leaves nothing behind."""

import os
import socket

import pytest
from harness.addresses import Address
from harness.server import Server, children


@pytest.fixture
def taken():
    """An address that somebody else has, and on which nothing answers."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        yield Address(*other.getsockname())


@pytest.mark.parametrize("option", ["address", "status", "agent"])
def test_an_address_that_it_cannot_have_fails_it_with_that_line_of_its_log(taken, option):
    before = children(os.getpid())
    with pytest.raises(pytest.fail.Exception, match=rf"says: .*cannot listen on {taken.bind}: .* is in use"):
        Server("echo:app", **{option: taken})
    assert children(os.getpid()) == before
