"""The process that watches files for `--reload`."""

import importlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.master import watch
from tailrace.master.watch import Failed, Watched, Watching


def next_event(watcher):
    while not (events := watcher.read()):
        assert select.select([watcher.pipe], [], [], 30)[0], "nothing was told"
    return events


def changes_until(watcher, path):
    """What is told until this file is; one save may be told in two parts."""
    told = set()
    while str(path) not in told:
        for event in next_event(watcher):
            told.update(event.paths)
    return told


def installed_path():
    """The module path without what pytest has put there: this project's tests are not under development here."""
    ours = str(Path(__file__).resolve().parents[2])
    return [entry for entry in sys.path if "site-packages" in entry or not entry.startswith(ours)]


@pytest.fixture
def watcher(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", installed_path())
    (tmp_path / "app.py").touch()
    (tmp_path / "shop").mkdir()
    (tmp_path / ".venv").mkdir()
    elsewhere = tmp_path.parent / f"{tmp_path.name}-env"
    elsewhere.mkdir()
    (elsewhere / "app.env").touch()
    started = watch.start("app:app", [str(elsewhere / "app.env")])
    assert next_event(started) == [Watching([str(tmp_path)])]
    yield started
    started.stop()


def test_only_changes_of_code_are_reported(watcher, tmp_path):
    cart, app = tmp_path / "shop" / "cart.py", tmp_path / "app.py"
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".venv" / "late.py").write_text("x")
    (tmp_path / ".#app.py").write_text("x")
    cart.write_text("x")
    assert changes_until(watcher, cart) == {str(cart)}
    # As editors save: the new text beside, then a rename.
    (tmp_path / "app.py.new").write_text("x")
    (tmp_path / "app.py.new").rename(app)
    assert changes_until(watcher, app) <= {str(cart), str(app)}


def test_a_file_in_a_new_directory_and_a_removed_one_are_told(watcher, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "app.py").unlink()
    assert changes_until(watcher, tmp_path / "app.py") == {str(tmp_path / "app.py")}
    (tmp_path / "new" / "late.py").write_text("x")
    assert str(tmp_path / "new" / "late.py") in changes_until(watcher, tmp_path / "new" / "late.py")


def test_it_ends_when_it_is_stopped(watcher):
    pid = watcher.pid
    watcher.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    watcher.stop()


def test_its_end_is_told(watcher):
    os.kill(watcher.pid, signal.SIGKILL)
    assert next_event(watcher) == [Failed("its process has ended")]


def test_it_ends_with_the_master_and_does_not_heed_ctrl_c(tmp_path):
    source = (
        "import os, select, signal, sys\n"
        "from tailrace.master import watch\n"
        "watcher = watch.start(None)\n"
        "while not watcher.read(): select.select([watcher.pipe], [], [])\n"
        "os.kill(watcher.pid, signal.SIGINT)\n"
        "os.write(1, b'%d\\n' % watcher.pid)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # The pipe is closed by the last of the two.
    with subprocess.Popen([sys.executable, "-c", source], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        pid = int(process.stdout.readline())
        assert process.wait(30) == -signal.SIGKILL
        assert process.stdout.read() == b""
    assert pid > 0


def test_a_directory_that_cannot_be_watched_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch, "roots", lambda application: [str(tmp_path / "absent")])
    started = watch.start("app:app")
    (failed,) = next_event(started)
    assert isinstance(failed, Failed)
    assert failed.reason
    started.stop()


def test_without_watchfiles_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"watchfiles, which is not installed; `pip install 'tailrace\[reload\]'`"):
        watch.start("app:app")


def test_the_directories_to_watch(tmp_path, monkeypatch):
    for name in ("work/src", "apps", "library", "work/inner"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "path", ["", *installed_path(), str(tmp_path / "library"), str(tmp_path / "absent")])
    assert watch.roots("shop:app") == [str(tmp_path / "library"), str(tmp_path / "work")]
    assert watch.roots("../apps/shop.wsgi:app") == [str(tmp_path / each) for each in ("apps", "library", "work")]
    assert watch.roots("./inner/shop.py") == [str(tmp_path / "library"), str(tmp_path / "work")]


def test_what_concerns_the_code():
    code = ["/w/app.py", "/w/shop/_native.so", "/.hidden/w/a.py", "/etc/app.env"]
    hidden = ["/w/.git/hook.py", "/w/.venv/lib/a.py", "/w/env/lib/site-packages/a.py", "/w/__pycache__/a.py"]
    of_editors = ["/w/.#a.py", "/w/a.py~", "/w/a.pyc"]
    elsewhere = ["/wider/a.py", "/etc/other.env"]
    paths = [*code, *hidden, *of_editors, *elsewhere, "/w/shop/page.html"]
    watched = Watched(["/w", "/.hidden/w"], ["/etc/app.env"], [], [])
    assert [path for path in paths if watched.concerns(path)] == code


@pytest.mark.parametrize(
    ("written", "meant", "others"),
    [
        (
            "pages",
            ["pages/a.html", "pages/deep/er/a.html"],
            ["pages/.a.html.swp", "pages/__pycache__/a.pyc", "other/a.html", "pages2/a.html"],
        ),
        ("pages/", ["pages/a.html"], []),
        ("./pages", ["pages/a.html"], []),
        ("pages/../conf", ["conf/a.toml"], []),
        (".", ["conf/a.toml"], [".git/index"]),
        ("conf/a.toml", ["conf/a.toml"], ["conf/b.toml"]),
        ("conf/late.toml", ["conf/late.toml"], []),
        (".env*", [".env", ".env.local"], []),
        ("*", ["a.txt", "pages/a.html"], [".env"]),
        ("*.html", [], ["pages/a.html"]),
        ("pages/*.html", ["pages/a.html"], ["pages/deep/a.html"]),
        ("pages/*.HTML", [], ["pages/a.html"]),
        ("pages/?.html", ["pages/a.html"], ["pages/ab.html"]),
        ("pages/[ab].html", ["pages/b.html"], ["pages/c.html"]),
        ("pages/**", ["pages/a.html", "pages/deep/er/a.html"], []),
        ("pages/**/*.html", ["pages/a.html", "pages/deep/er/a.html"], ["pages/deep/er/a.txt", "pages/.git/a.html"]),
        ("**/*.html", ["pages/deep/a.html"], ["env/site-packages/a.html"]),
        ("**/deep", ["pages/deep/er/a.html"], []),
        ("**/deep/**/a.*", ["pages/deep/er/a.html"], []),
        ("p*s/de*", ["pages/deep/er/a.html"], []),
        ("*/.hidden/*", ["pages/.hidden/a.html"], []),
        ("*/*/a.html", [], ["pages/.hidden/a.html"]),
        ("{work}/pages/*.html", ["pages/a.html"], []),
        ("../*/pages/*.html", ["pages/a.html"], []),
    ],
)
def test_what_a_pattern_means(tmp_path, monkeypatch, written, meant, others):
    work = tmp_path / "work"
    for name in ("pages/.hidden", "conf"):
        (work / name).mkdir(parents=True)
    (work / "conf" / "a.toml").touch()
    monkeypatch.chdir(work)
    found = watch.pattern(written.format(work=work))
    assert [path for path in [*meant, *others] if found.matches(str(work / path))] == meant
    included = watch.Pattern(str(work), ("**",))
    for path in meant:
        assert not Watched([str(work)], [], [included], [found]).concerns(str(work / path)), "excluding wins"


def test_a_pattern_follows_the_links_of_its_path(tmp_path, monkeypatch):
    for name in ("work", "store"):
        (tmp_path / name).mkdir()
    (tmp_path / "store" / "real.toml").touch()
    (tmp_path / "work" / "pages").symlink_to(tmp_path / "store")
    (tmp_path / "work" / "linked.toml").symlink_to(tmp_path / "store" / "real.toml")
    monkeypatch.chdir(tmp_path / "work")
    for written in ("pages", "pages/*.toml", "pages/real.toml", "linked.toml"):
        assert watch.pattern(written).matches(str(tmp_path / "store" / "real.toml")), written


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("absent/*.html", "the directory {work}/absent does not exist; create it, or correct the path"),
        ("absent/a.html", "the directory {work}/absent does not exist; create it, or correct the path"),
        ("conf.toml/*", "the directory {work}/conf.toml does not exist; "),
        ("/**/*.html", "every file on this machine would be watched; begin with a directory"),
        ("/", "every file on this machine would be watched; begin with a directory"),
        ("/absent.toml", "every file on this machine would be watched; begin with a directory"),
    ],
)
def test_a_pattern_that_cannot_be_watched_is_one_line(tmp_path, monkeypatch, written, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf.toml").touch()
    with pytest.raises(ConfigError) as caught:
        watch.start("app:app", include=[written])
    assert str(caught.value).startswith(f"--reload-include {written!r}: {said.format(work=tmp_path)}")


def test_included_files_are_reported_and_excluded_ones_are_not(tmp_path, monkeypatch):
    work, texts = tmp_path / "work", tmp_path / "texts"
    for directory in (work / "tests", work / "pages" / "drafts", texts):
        directory.mkdir(parents=True)
    monkeypatch.chdir(work)
    monkeypatch.setattr(sys, "path", installed_path())
    started = watch.start("app:app", include=["pages", "../texts/*.po", "!tests", "!**/drafts", "!absent/*"])
    try:
        assert next_event(started) == [Watching([str(texts), str(work)])]
        for ignored in (work / "tests" / "test_app.py", work / "pages" / "drafts" / "a.html", work / "a.html"):
            ignored.write_text("x")
        (texts / "a.mo").write_text("x")
        page, text = work / "pages" / "a.html", texts / "a.po"
        page.write_text("x")
        assert changes_until(started, page) == {str(page)}
        text.write_text("x")
        assert changes_until(started, text) == {str(text)}
    finally:
        started.stop()


def test_two_versions_with_the_same_second_and_size_are_distinguished(modules, monkeypatch):
    directory = modules(twice="VALUE = 1\n")
    monkeypatch.syspath_prepend(str(directory))
    path = directory / "twice.py"
    os.utime(path, (1e9, 1e9))
    assert importlib.import_module("twice").VALUE == 1
    path.write_text("VALUE = 2\n")
    os.utime(path, (1e9, 1e9))
    del sys.modules["twice"]
    watch.forget_bytecode([str(path), str(directory / "absent.py"), str(directory / "native.so")])
    assert importlib.import_module("twice").VALUE == 2
