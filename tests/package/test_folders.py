"""The folders of static files, before a server serves."""

import pytest
from harness.settings import server_settings

import tailrace
from tailrace.cli import folders
from tailrace.cli.settings import from_keywords
from tailrace.errors import ConfigError


@pytest.fixture(autouse=True)
def site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "index.html").write_text("x")
    (tmp_path / "public").mkdir()
    (tmp_path / "file").write_text("x")
    return tmp_path


def located(directory=None, **given):
    return folders.located(from_keywords(given).effective, directory)


def test_without_folders_there_is_nothing_to_check():
    assert vars(located()) == vars(server_settings())


def test_folders_are_found_from_the_current_directory(site):
    found = located(static={"/a": "./dist", "/b": str(site / "public")}, overlay="public")
    assert found.static == (("/a", f"{site}/dist"), ("/b", f"{site}/public"))
    assert found.overlay == f"{site}/public"
    found = located(sendfile_root=["./dist", "/in=public", "/=dist"])
    assert found.sendfile_root == ((None, f"{site}/dist"), ("/in", f"{site}/public"), ("", f"{site}/dist"))


def test_a_link_in_the_name_of_the_directory_stays(site):
    (site / "current").symlink_to(site)
    found = located(str(site / "current"), static={"/a": "dist"})
    assert found.static == (("/a", f"{site}/current/dist"),)
    # This may be another directory than the one without `..`.
    assert located(static={"/a": "dist/../public"}).static == (("/a", f"{site}/dist/../public"),)


def test_the_access_log_is_found_from_the_directory(site):
    assert located(access_log="log").access_log == f"{site}/log"
    assert located("/srv", access_log="log").access_log == "/srv/log"
    assert located(access_log="syslog").access_log == "syslog"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"static": {"/a": "dits"}}, "^--static /a=dits: the folder .*/dits does not exist; create it, or name"),
        ({"static": {"/": "file"}}, "^--static /=file: .*/file is not a folder; name the folder that contains the"),
        ({"static": {"/a": "file/x"}}, "^--static /a=file/x: .*/file/x cannot be used: Not a directory; name"),
        ({"static": {"/a": "x" * 300}}, "cannot be used: File name too long"),
        ({"sendfile_root": "absent"}, "^--sendfile-root absent: the folder .*/absent does not exist"),
        ({"sendfile_root": "/=absent"}, "^--sendfile-root /=absent: the folder .*/absent does not exist"),
        ({"overlay": "absent"}, "^--overlay absent: the folder .*/absent does not exist"),
        ({"overlay": "dist", "static": {"/": "public"}}, "^--static / and --overlay both serve every path; remove"),
        (
            {"static_fallback": "200=index.html"},
            r"^--static-fallback 200=index.html: the file must be in a --static folder; add one, as in --static",
        ),
        (
            {"static_fallback": "200=index.html", "overlay": "dist"},
            "^--static-fallback 200=index.html: the file must be in a --static folder",
        ),
        (
            {"static_fallback": "404=404.html", "static": {"/": "dist"}},
            r"^--static-fallback 404=404.html: no --static folder contains this file \(.*/dist\); give its",
        ),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(given, message):
    with pytest.raises(ConfigError, match=message) as caught:
        located(**given)
    assert "\n" not in str(caught.value)


def test_a_page_in_one_of_the_folders_is_enough():
    assert located(static={"/a": "public", "/": "dist"}, static_fallback="200=index.html")


def test_a_folder_that_may_not_be_entered_is_refused(command, site):
    (site / "dist").chmod(0o600)
    refused = command("static", "list", "--static", "/a=dist")
    try:
        assert refused.end() == 2
    finally:
        (site / "dist").chmod(0o700)
    assert refused.seen == [
        f"tailrace: error: --static /a=dist: this user cannot enter {site}/dist; grant access, or name another folder\n"
    ]


@pytest.mark.parametrize("ways", [(), ("--debug",)])
def test_an_application_may_change_the_directory(command, site, ways):
    (site / "dist" / "moving.py").write_text(
        "import os\nos.chdir('/')\ndef app(environ, start_response):\n    return []\n"
    )
    (site / "dist" / "files").mkdir()
    # Relative to --chdir.
    server = command("moving:app", "--chdir", "dist", "--bind", "127.0.0.1:0", "--static", "/a=files", *ways)
    assert server.address()


def test_a_program_gets_the_same_error():
    with (
        pytest.raises(ConfigError, match="--static /a=absent: the folder "),
        tailrace.serve_in_thread(lambda environ, start_response: [], static={"/a": "absent"}),
    ):
        pass
