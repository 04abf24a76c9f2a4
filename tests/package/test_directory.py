"""The current directory and `--chdir`."""

import os

from tailrace.system import directory


def test_the_directory_keeps_the_name_that_the_operator_uses(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "current").symlink_to("one")
    monkeypatch.chdir(tmp_path / "current")
    monkeypatch.setenv("PWD", str(tmp_path / "current"))
    assert directory.named(None) == str(tmp_path / "current")
    assert directory.named("sub") == os.path.join(os.getcwd(), "sub")
    assert directory.named("/srv/current") == "/srv/current"
    for stale in (str(tmp_path), "/nowhere", "relative"):
        monkeypatch.setenv("PWD", stale)
        assert directory.named(None) == os.getcwd()
    monkeypatch.delenv("PWD")
    assert directory.named(None) == os.getcwd()
