"""`tailrace static list`."""

import json
import os
import sys

import pytest
from click.testing import CliRunner
from tailrace_tools import static_list
from tailrace_tools.command import STATIC_FILES

from tailrace.cli import folders
from tailrace.cli.options import BY_NAME
from tailrace.cli.settings import from_keywords
from tailrace.command import cli, main

HASHED = "public, max-age=31536000, immutable"


@pytest.fixture(autouse=True)
def site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "dist/index.html": "<p>",
        "dist/app.3f2a9c1b.js": "hello",
        "dist/sub/a b.txt": "a",
        "public/favicon.ico": "i",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def everything(pattern=None, **given):
    return static_list.rows(folders.located(from_keywords(given).effective), pattern)


def rows(pattern=None, **given):
    """Those of files."""
    return [row for row in everything(pattern, **given) if row.status != static_list.REDIRECTED]


def by_url(pattern=None, **given):
    return {row.url: row for row in rows(pattern, **given)}


def urls(pattern=None, **given):
    return [row.url for row in rows(pattern, **given)]


def reasons(**given):
    return {row.url: row.reason for row in rows(**given) if row.status == static_list.REFUSED}


def test_each_file_has_its_url_and_its_fields(site):
    found = by_url(static={"/assets": "dist"}, static_cache="*.html=no-cache", mime=".txt=text/x-notes")
    assert list(found) == ["/assets/", "/assets/app.3f2a9c1b.js", "/assets/index.html", "/assets/sub/a%20b.txt"]
    nosniff = {"X-Content-Type-Options": "nosniff"}
    page = {"Content-Type": "text/html; charset=utf-8", "Content-Length": "3", "Cache-Control": "no-cache", **nosniff}
    assert found["/assets/"].headers == found["/assets/index.html"].headers == page
    assert found["/assets/"].file == f"{site}/dist/index.html"
    assert found["/assets/app.3f2a9c1b.js"].headers == {
        "Content-Type": "text/javascript; charset=utf-8",
        "Content-Length": "5",
        "Cache-Control": HASHED,
        **nosniff,
    }
    assert found["/assets/sub/a%20b.txt"].headers == {"Content-Type": "text/x-notes", "Content-Length": "1", **nosniff}


def test_compressed_siblings_are_codings_unless_they_are_older(site):
    for suffix in (".gz", ".br", ".zst"):
        (site / "dist" / f"app.3f2a9c1b.js{suffix}").write_text("x")
    os.utime(site / "dist" / "app.3f2a9c1b.js.br", (1, 1))
    found = by_url("/app.3f2a9c1b.js", static={"/": "dist"})
    assert found["/app.3f2a9c1b.js"].codings == {"zstd": 1, "gzip": 1}


def test_what_would_be_compressed_is_shown(site):
    (site / "dist" / "large.css").write_text("a" * 1_000)
    (site / "dist" / "large.css.gz").write_text("x")
    (site / "dist" / "large.png").write_text("a" * 1_000)
    found = by_url(static={"/": "dist"}, compress=True)
    assert (found["/large.css"].codings, found["/large.css"].compressed) == ({"gzip": 1}, ("br",))
    assert found["/large.png"].compressed == found["/index.html"].compressed == ()
    lines = static_list.as_text([found["/large.css"]], str(site)).splitlines()
    assert lines[1].endswith("gzip, br (--compress)")
    assert json.loads(static_list.as_json([found["/large.css"]]))[0]["compressed"] == ["br"]
    assert by_url(static={"/": "dist"})["/large.css"].compressed == ()


def test_what_is_not_served_is_shown_with_the_reason(site):
    dist = site / "dist"
    (dist / ".env").write_text("x")
    (dist / ".git").mkdir()
    (dist / ".git" / "config").write_text("x")
    (dist / ".well-known").mkdir()
    (dist / ".well-known" / "a.txt").write_text("x")
    (dist / "away").symlink_to("/etc/hostname")
    (dist / "back").symlink_to("../dist/index.html")
    (dist / "near").symlink_to("index.html")
    (dist / "gone").symlink_to("absent")
    (dist / "a\\b").write_text("x")
    (dist / "a\x1bb").write_text("x")
    (dist / os.fsdecode(b"\xff")).write_text("x")
    os.mkfifo(dist / "pipe")
    dot, link = static_list._REASONS["dot"], static_list._REASONS["link"]
    wanted = {
        "/%FF": "its name is not UTF-8",
        "/.env": dot,
        "/.git": dot,
        "/a%1Bb": "its name contains a control character",
        "/a%5Cb": "its name contains a backslash",
        "/away": link,
        "/back": link,
        "/gone": "a broken symbolic link",
        "/pipe": "not a regular file",
    }
    assert reasons(static="/=dist") == wanted
    assert {"/near", "/.well-known/a.txt"} <= set(urls(static="/=dist"))
    never = reasons(static="/=dist", static_symlinks="never")
    assert {never[f"/{name}"] for name in ("away", "near", "gone")} == {"a symbolic link (--static-symlinks)"}
    followed = reasons(static="/=dist", static_symlinks="follow")
    assert set(wanted) - set(followed) == {"/away", "/back"}


def test_a_link_to_a_folder_around_it_ends():
    os.symlink("..", "dist/sub/up")
    found = by_url(static="/=dist")
    assert (found["/sub/up"].status, found["/sub/up"].reason) == ("repeated", "a link to a folder that contains it")


def test_a_longer_path_hides_the_files_of_a_shorter_one(site):
    (site / "public" / "assets").mkdir()
    (site / "public" / "assets" / "x.txt").write_text("x")
    (site / "public" / "assets-old").write_text("x")
    found = by_url(static="/assets=dist", overlay="public")
    assert (found["/assets/x.txt"].status, found["/assets/x.txt"].reason) == (
        "hidden",
        "the folder of /assets takes precedence",
    )
    assert found["/assets-old"].status == found["/favicon.ico"].status == "served"


def test_an_overlay_has_no_index(site):
    (site / "public" / "index.html").write_text("x")
    assert urls(overlay="public") == ["/favicon.ico", "/index.html"]
    assert "/" not in urls(static="/=dist", static_index="")
    assert by_url(static="/=dist", static_index="index.htm,index.html")["/"].file == f"{site}/dist/index.html"


def others(**given):
    """What is no file, by URL: its status and the reason."""
    return {row.url: (row.status, row.reason) for row in everything(**given) if row.status != static_list.SERVED}


def test_a_path_without_the_slash_of_its_folder_is_redirected():
    assert others(static={"/a b": "dist"}) == {"/a%20b": ("redirected", "to /a%20b/")}
    assert others(static="/=dist") == {}, "the root has its slash"
    assert others(static="/a=dist", static_index="") == {}, "no page, no redirect to one"
    assert others(overlay="dist") == {}


def test_what_is_sent_for_other_paths_is_shown(site):
    (site / "dist" / "404.html").write_text("no")
    given = {"static": {"/a": "dist", "/p": "public"}, "static_fallback": "200=index.html 404=404.html"}
    found = [row for row in everything(**given) if row.url.endswith("*")]
    assert [(row.url, row.file, row.status) for row in found] == [
        ("/a/*", f"{site}/dist/404.html", "absent"),
        ("/a/*", f"{site}/dist/index.html", "fallback"),
    ]
    assert [row.headers.get("Cache-Control") for row in found] == ["no-store", None]
    shown = json.loads(static_list.as_json(found))[1]
    assert shown["headers"]["Content-Type"] == "text/html; charset=utf-8"
    assert shown["reason"].endswith("(--static-fallback), with status 200")
    text = static_list.as_text(found, str(site))
    assert "/a/*  dist/404.html    absent: missing files (--static-fallback), with status 404" in text
    assert "0 served, 1 fallback, 1 absent" in text


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("/a/sub", ["/a/sub/a%20b.txt"]),
        ("/a/sub/", ["/a/sub/a%20b.txt"]),
        ("/a/su", []),
        ("*.html", ["/a/index.html"]),
        ("/a/*.txt", ["/a/sub/a%20b.txt"]),
        ("index.html", ["/a/index.html"]),
        ("/a/index.html", ["/a/index.html"]),
    ],
)
def test_a_pattern_chooses(pattern, wanted):
    assert urls(pattern, static="/a=dist") == wanted


def test_the_command_prints_a_table(site):
    (site / "dist" / ".env").write_text("x")
    done = CliRunner().invoke(cli, ["static", "list", "--static", "/=dist", "--overlay", ""])
    assert done.exit_code == 0
    assert [line.split() for line in done.output.splitlines()][:4] == [
        ["URL", "FILE", "LENGTH", "TYPE", "CACHE-CONTROL", "CODINGS"],
        ["/", "dist/index.html", "3", "text/html;", "charset=utf-8", "-", "-"],
        ["/.env", "dist/.env", "refused:", *["its", "name", "begins", "with", "a", "dot"]],
        ["/app.3f2a9c1b.js", "dist/app.3f2a9c1b.js", "5", "text/javascript;", "charset=utf-8", *HASHED.split(), "-"],
    ]
    assert done.output.endswith("4 served, 1 refused. Each served file has X-Content-Type-Options: nosniff.\n")


def test_the_command_prints_json(site):
    (site / "dist" / ".env").write_text("x")
    done = CliRunner().invoke(cli, ["static", "list", "--static", "/a=dist", "--json", "/a/.env"])
    assert json.loads(done.output) == [
        {"url": "/a/.env", "file": f"{site}/dist/.env", "status": "refused", "reason": "its name begins with a dot"}
    ]
    done = CliRunner().invoke(cli, ["static", "list", "--static", "/a=dist", "--json", "*.html"])
    (shown,) = json.loads(done.output)
    assert (shown["status"], shown["headers"]["Content-Length"], shown["codings"]) == ("served", "3", {})


def test_it_takes_the_options_of_a_server():
    listing = STATIC_FILES.commands["list"]
    assert {each.name for each in listing.params} == {*BY_NAME, "config", "json", "path"} - {"app"}


def test_a_file_of_settings_and_another_directory_are_heeded(site):
    (site / "tailrace.toml").write_text('app = "absent:app"\nchdir = "dist"\n[static]\n"/s" = "sub"\n')
    done = CliRunner().invoke(cli, ["static", "list"])
    assert "/s/a%20b.txt  sub/a b.txt" in done.output


@pytest.mark.parametrize(
    "application", ["app:app", "mysite.wsgi:application", "./hello.py:app", "shop:create_app('production')"]
)
@pytest.mark.parametrize("path", [[], ["*.js"]], ids=str)
def test_the_application_of_a_command_line_is_no_path(application, path):
    for given in ([application, *path], [*path, application]):
        done = CliRunner().invoke(cli, ["static", "list", "--static", "/s=dist", *given])
        assert done.exit_code == 0, done.output
        assert "/s/app.3f2a9c1b.js" in done.output
        assert ("/s/sub/a%20b.txt" in done.output) == (not path)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "no folder to serve: name one, as in --static /assets=./dist or --overlay ./public"),
        (["--static", "/=absent"], 2, "--static /=absent: the folder "),
        (["--static", "/=dist", "sub/x"], 2, "PATH is a URL path and begins with a slash: /sub/x"),
        (["--static", "/=dist", "/absent"], 2, "/absent: no file in the folders matches; omit PATH to list all files"),
        (
            ["--static", "/=dist", "site.wsgi"],
            2,
            "site.wsgi: no file in the folders matches; omit PATH to list all files (no application is needed)",
        ),
        (
            ["--static", "/=dist", "/a", "app:app", "/b"],
            2,
            "only one PATH can be given, but there are several arguments: ",
        ),
        (["--static", "/=dist", "/a", "/b"], 2, "only one PATH can be given, but there are several arguments: '/a'"),
        (["--static-map", "/=dist"], 2, "no such option: --static-map; Tailrace calls it --static"),
    ],
)
def test_a_mistake_is_one_line(monkeypatch, capsys, arguments, status, message):
    monkeypatch.setattr(sys, "argv", ["tailrace", "static", "list", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == status
    shown = capsys.readouterr().err
    assert shown.startswith(f"tailrace: error: {message}")
    assert "serve --help" not in shown
