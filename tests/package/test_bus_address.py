"""The address of `--publish-bus`."""

import os
import subprocess
import sys

import pytest

from tailrace.system.bus_address import parse


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://x", "must begin with redis://"),
        ("redis:x", "must begin with redis://"),
        ("redis://", "has no host"),
        ("redis://x:y", "not a valid URL"),
        ("redis://[x", "not a valid URL"),
        ("redis://x?channel=a%20b", "channel="),
        ("redis://x?channel=", "channel="),
        ("redis://u:s3/cret@h", "in a password, write"),
        ("redis://u:1/s3cret@h", "in a password, write"),
        ("postgresql://u:s3cret%zz@h/db", "in a password, write"),
    ],
)
def test_an_address_says_what_is_wrong_but_not_the_password(url, said):
    with pytest.raises(ValueError, match=said) as error:
        parse(url)
    assert "cret" not in str(error.value)


def test_an_address_is_shown_without_its_password():
    address = parse("redis://user:pass@h:6379/2?channel=a&health_check_interval=3")
    assert address.url == "redis://user:pass@h:6379/2?health_check_interval=3"
    assert address.shown == "redis://h:6379/2 (channel a)"
    assert address[2:] == ("a", "redis")
    assert parse("postgresql://u:p@[::1]/db").shown == "postgresql://[::1]/db (channel tailrace)"
    valkey = parse("valkey://:p@h:1/0")
    assert (valkey.url, valkey.shown, valkey.package) == (
        "redis://:p@h:1/0",
        "valkey://h:1/0 (channel tailrace)",
        "redis",
    )
    assert parse("rediss://:p@[::1]:1").shown == "rediss://[::1]:1 (channel tailrace)"


def test_the_forms_of_libpq_are_kept():
    several = "postgresql://u:p@h1:5432,h2:5433/db?target_session_attrs=read-write"
    assert parse(several).url == several
    assert parse(several).shown == "postgresql://h1:5432,h2:5433/db (channel tailrace)"
    assert parse("postgresql:///db?host=%2Ftmp&channel=x").url == "postgresql:///db?host=%2Ftmp"
    assert parse("postgresql://h/d?options=-c%20a%3Db").url == "postgresql://h/d?options=-c%20a%3Db"


@pytest.mark.parametrize("url", ["redis://u:1/s3cret@h", "postgresql://u:s3cret%zz@h/db", "http://h?password=s3cret"])
def test_a_wrong_setting_is_shown_without_its_password(url):
    for arguments, more in ((["--publish-bus", url], {}), ([], {"TAILRACE_PUBLISH_BUS": url})):
        command = [sys.executable, "-m", "tailrace", "app:app", *arguments]
        ended = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, check=False)
        said = ended.stdout + ended.stderr
        assert ended.returncode and f"'{url.partition('//')[0]}//...': " in said and "s3cret" not in said, said
