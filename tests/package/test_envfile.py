"""Variables from the file of `--env-file`."""

import errno
import json
import os
import tempfile

import pytest

from tailrace.cli import envfile
from tailrace.cli.envfile import Variables
from tailrace.errors import ConfigError


def test_the_lines_of_a_file(tmp_path):
    path = tmp_path / "env"
    path.write_text(
        "# the database\n"
        "\n"
        "DATABASE=postgres://db/shop   # with a comment\n"
        "export SECRET='it''s'\n"
        'GREETING="two\\nlines # no comment"\n'
        "PASSWORD=pa$$word${HOME}#1\n"
        "EMPTY=\n"
        "  SPACED = value \n"
    )
    with pytest.raises(ConfigError, match=r"line 4: not NAME=value"):
        envfile.read(str(path), {})
    path.write_text(path.read_text().replace("'it''s'", r"'it\'s'"))
    assert envfile.read(str(path), {}) == {
        "DATABASE": "postgres://db/shop",
        "SECRET": "it's",
        "GREETING": "two\nlines # no comment",
        "PASSWORD": "pa$$word${HOME}#1",
        "EMPTY": "",
        "SPACED": "value",
    }


def test_what_the_environment_has_stays(tmp_path):
    (tmp_path / "env").write_text("A=file\nB=file\n")
    assert envfile.read(str(tmp_path / "env"), {"A": "given"}) == {"B": "file"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"A=1\n\n\nsecret", "line 4: not NAME=value"),
        (b"A='no end\n", "line 1: not NAME=value"),
        (b"A=\0\n", "line 1: not NAME=value"),
        (b"A=\xff\n", "not UTF-8"),
    ],
)
def test_a_line_that_is_none_is_named_by_its_number_alone(tmp_path, content, message):
    (tmp_path / "env").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        envfile.read(str(tmp_path / "env"), {})
    assert str(caught.value).startswith(f"--env-file {tmp_path}/env")
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"env-file .*/absent: cannot be read: No such file"):
        envfile.read(str(tmp_path / "absent"), {})


def test_a_file_without_end_is_refused():
    with pytest.raises(ConfigError, match=r"env-file /dev/zero: larger than 1 MiB; check the path"):
        envfile.read("/dev/zero", {})


def test_variables_are_read_again(monkeypatch, tmp_path):
    monkeypatch.setenv("GIVEN", "here")
    path = tmp_path / "env"
    path.write_text("ONE=1\nGIVEN=file\n")
    variables = Variables(str(path))
    path.write_text("ONE=2\n")
    before = dict(os.environ)
    try:
        variables.apply()
        assert (os.environ["ONE"], os.environ["GIVEN"]) == ("2", "here")
        path.unlink()
        with pytest.raises(ConfigError, match="No such file"):
            variables.apply()
    finally:
        os.environ.clear()
        os.environ.update(before)
    Variables(None).apply()
    assert dict(os.environ) == before


def test_a_new_master_gets_what_its_user_cannot_read(monkeypatch, tmp_path):
    path = tmp_path / "env"
    path.write_text("ONE=1\nTWO=2\n")
    # As Kubernetes does, and in a directory that the new user cannot enter.
    (tmp_path / "link").symlink_to(path)
    link = str(tmp_path / "link")
    first = Variables(link)
    assert first.hidden() == ""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert first.hidden() == "", "this user can read it, too"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    said = first.hidden()
    assert json.loads(said) == {link: {"ONE": "1", "TWO": "2"}}
    monkeypatch.setattr(envfile, "_inherited", {})
    inherit(said)

    def denied(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    monkeypatch.setattr(os.path, "realpath", denied)
    assert envfile.read(link, {"TWO": "given"}) == {"ONE": "1"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    assert envfile.read("link", {}) == {"ONE": "1", "TWO": "2"}
    assert Variables(link).hidden() == said
    with pytest.raises(ConfigError, match="env: cannot be read: Permission denied"):
        envfile.read(str(path), {})


def inherit(text):
    with tempfile.TemporaryFile() as file:
        descriptor = os.dup(file.fileno())
    os.write(descriptor, text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    envfile.inherit(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_only_a_former_master_can_give_variables(monkeypatch, tmp_path):
    monkeypatch.setattr(envfile, "_inherited", {})
    path = tmp_path / "gone"
    inherit("nonsense")
    monkeypatch.setenv("_TAILRACE_ENV_FILE", json.dumps({str(path): {"ONE": "1"}}))
    with pytest.raises(ConfigError, match="gone: cannot be read: No such file"):
        envfile.read(str(path), {})
    # As in a reload, which keeps the variables then.
    inherit(json.dumps({str(path): {}}))
    assert envfile.read(str(path), {}) == {}
