"""Which file a URL leads to, and the fields of its response that options decide."""

import json

import pytest
from harness.server import Server
from server.probes import eventually
from static.site import ask, fields_of, overlaying, serving, tree

SITE = {
    "index.html": b"<h1>top</h1>",
    "a.css": b"a { }",
    "docs/index.html": b"<h1>docs</h1>",
    "docs/page.html": b"page",
    "plain/file.txt": b"text",
    "404.html": b"<h1>lost</h1>",
    "app.3f2a9c1b.js": b"hash",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tree(tmp_path_factory.mktemp("site"), SITE)


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder) as started:
        yield started


TYPES = {
    "a.html": "text/html; charset=utf-8",
    "a.HTM": "text/html; charset=utf-8",
    "a.css": "text/css; charset=utf-8",
    "a.js": "text/javascript; charset=utf-8",
    "a.mjs": "text/javascript; charset=utf-8",
    "a.json": "application/json",
    "a.svg": "image/svg+xml",
    "a.png": "image/png",
    "a.woff2": "font/woff2",
    "a.wasm": "application/wasm",
    "a.txt": "text/plain; charset=utf-8",
    "a.unknown-extension": "application/octet-stream",
    "README": "application/octet-stream",
    "a.data": "text/x-own",
    "a.geo": "application/geo+json",
}


def test_types(tmp_path):
    tree(tmp_path, dict.fromkeys(TYPES, b"x"))
    with serving(tmp_path, "--mime", ".data=text/x-own", "--mime", ".geo=application/geo+json") as server:
        with server.client() as client:
            for name, expected in TYPES.items():
                got = ask(client, f"/assets/{name}")
                assert (got["Content-Type"], got["X-Content-Type-Options"]) == (expected, "nosniff"), name


def test_cache_control(folder):
    rules = ["--static-cache", "/assets/docs=60s", "--static-cache", "*.html=no-cache", "--static-cache", "*.txt=none"]
    expected = {
        "/assets/docs/page.html": ["max-age=60"],
        "/assets/docs/": ["max-age=60"],
        "/assets/": ["no-cache"],
        "/assets/a.css": [],
        "/assets/plain/file.txt": [],
        "/assets/app.3f2a9c1b.js": ["public, max-age=31536000, immutable"],
    }
    with serving(folder, *rules) as server, server.client() as client:
        for target, values in expected.items():
            got = ask(client, target)
            assert (got.status, got.all("cache-control")) == (200, values), target
            again = ask(client, target, f"If-None-Match: {got['ETag']}")
            assert (again.status, again.all("cache-control")) == (304, values)


def test_a_folder_is_served_by_its_index(server):
    with server.client() as client:
        assert ask(client, "/assets/docs/").body == SITE["docs/index.html"]
        assert ask(client, "/assets/").body == SITE["index.html"]
        assert ask(client, "/assets/docs/")["Content-Type"] == "text/html; charset=utf-8"
        assert ask(client, "/assets/plain/").status == 404


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/assets", "/assets/"),
        ("/assets?a=1&b=/x", "/assets/?a=1&b=/x"),
        ("/assets/docs", "/assets/docs/"),
        ("/assets/docs?", "/assets/docs/?"),
        ("/assets/docs?x=%2F", "/assets/docs/?x=%2F"),
        ("/assets/%64ocs?x", "/assets/%64ocs/?x"),
        ("http://test/assets/docs?x=1", "/assets/docs/?x=1"),
    ],
)
def test_a_folder_without_the_slash_is_a_redirect(server, target, location):
    with server.client() as client:
        for _ in range(2):
            for method in ("GET", "HEAD"):
                got = ask(client, target, method=method)
                assert (got.status, got["Location"]) == (301, location)
            # What is known of the one path is not sent for the other.
            ask(client, location)


def test_a_redirect_has_the_prefix_that_a_proxy_has_removed(folder):
    with serving(folder, "--trusted-proxies", "127.0.0.1", "--forwarded-headers", "x-forwarded") as server:
        with server.client() as client:
            got = ask(client, "/assets/docs?a", "X-Forwarded-Prefix: /pre/")
            assert (got.status, got["Location"]) == (301, "/pre/assets/docs/?a")


def test_a_file_with_a_slash_is_missing(server):
    with server.client() as client:
        for _ in range(2):
            assert ask(client, "/assets/a.css").status == 200
            assert ask(client, "/assets/a.css/").status == 404
            assert ask(client, "/assets/a.css/x").status == 404


def test_other_indexes(folder):
    with serving(folder, "--static-index", "page.html", "--static-index", "index.html") as server:
        assert server.get("/assets/docs/").body == b"page"
        assert server.get("/assets/").body == SITE["index.html"]


def test_a_page_for_what_is_missing(folder):
    with serving(folder, static_fallback="404=404.html") as server, server.client() as client:
        for target in ("/assets/no", "/assets/no/", "/assets/plain/", "/assets/.env", "/assets/a%2fb", "/assets/a//b"):
            for fields in ([], ["If-None-Match: *"], ["If-Match: *"], ["Range: bytes=0-1"]):
                got = ask(client, target, *fields)
                assert (got.status, got.body, got["Cache-Control"]) == (404, SITE["404.html"], "no-store"), target
                assert got["Content-Type"] == "text/html; charset=utf-8"
                assert "etag" not in got
            head = ask(client, target, method="HEAD")
            assert (head.status, head["Content-Length"]) == (404, str(len(SITE["404.html"])))
        assert ask(client, "/assets/404.html").status == 200


def test_a_single_page_application(folder):
    with serving(folder, prefix="/", static_fallback="200=index.html") as server, server.client() as client:
        for target in ("/users/1", "/users/1/", "/x?y", "/no-such-page"):
            got = ask(client, target)
            assert (got.status, got.body) == (200, SITE["index.html"]), target
            assert ask(client, target, f"If-None-Match: {got['ETag']}").status == 304
        for target in ("/missing.js", "/users/1.png", "/.env"):
            assert ask(client, target).status == 404
        assert ask(client, "/a.css").body == SITE["a.css"]


def test_the_longest_prefix_counts(tmp_path):
    top = tree(tmp_path / "top", {"a.txt": b"top", "x/a.txt": b"top x", "x/only.txt": b"hidden"})
    middle = tree(tmp_path / "middle", {"a.txt": b"middle", "y/a.txt": b"middle y"})
    deep = tree(tmp_path / "deep", {"a.txt": b"deep"})
    mounts = ["--static", f"/={top}", "--static", f"/x={middle}", "--static", f"/x/y={deep}"]
    with Server("echo:app", *mounts) as server, server.client() as client:
        for _ in range(2):
            assert ask(client, "/a.txt").body == b"top"
            assert ask(client, "/x/a.txt").body == b"middle"
            assert ask(client, "/x/y/a.txt").body == b"deep"
            assert ask(client, "/x/only.txt").status == 404
            assert ask(client, "/xy/a.txt").status == 404


def test_what_one_mount_serves_is_never_sent_for_another(tmp_path):
    top = tree(tmp_path / "top", {"assets/a.txt": b"below the top"})
    assets = tree(tmp_path / "assets", {"a.txt": b"of the mount"})
    mounts = ["--static", f"/={top}", "--static", f"/assets={assets}"]
    with Server("echo:app", *mounts) as server, server.client() as client:
        # Prefixes are compared as they arrive, so this is a path below `/`.
        for _ in range(3):
            assert ask(client, "/%61ssets/a.txt").body == b"below the top"
            assert ask(client, "/assets/a.txt").body == b"of the mount"
            assert ask(client, "/assets/%61.txt").body == b"of the mount"


def test_other_paths_reach_the_application(server):
    with server.client() as client:
        for target in ("/", "/assetsx", "/assets-old/a.css", "/ASSETS/a.css", "/%61ssets/a.css"):
            assert json.loads(ask(client, target).body)["PATH_INFO"]


TARGETS = [
    "/", "/docs", "/docs/", "/plain", "/plain/", "/no", "/no?query=%20", "/.env", "/a%2fb", "/a//b", "//a.css",
    "/a%00b", "/../a.css", "/%2e%2e/a.css", "/%zz", "/%ff", "/a.css/", "/a.css/x", "/A.CSS", "/a\\b", "/x;y=1",
    "/%C3%BC", "http://test/no?x", "/no%3fq", "/" + "a" * 300, "/" + "a/" * 80,
]  # fmt: skip


def seen_by(server, target, *fields):
    with server.client() as client:
        got = ask(client, target, *fields)
        try:
            seen = json.loads(got.body)
        except ValueError:
            return got.status
        for name in ("REMOTE_PORT", "SERVER_PORT", "HTTP_HOST"):
            seen.pop(name, None)
        return got.status, seen


def test_an_overlay_leaves_all_but_files_to_the_application_unchanged(folder):
    with overlaying(folder) as server, Server("echo:app") as plain:
        for target in TARGETS:
            for _ in range(2):
                assert seen_by(server, target, "X-One: 1") == seen_by(plain, target, "X-One: 1"), target
        for name in ("a.css", "index.html", "docs/page.html"):
            assert server.get(f"/{name}").body == SITE[name]


def test_an_overlay_behind_mounts(folder, tmp_path):
    over = tree(tmp_path / "over", {"robots.txt": b"robots", "assets/a.css": b"never", "assets/b.css": b"never"})
    with serving(folder, "--overlay", str(over)) as server, server.client() as client:
        for _ in range(2):
            assert ask(client, "/robots.txt").body == b"robots"
            assert ask(client, "/assets/a.css").body == SITE["a.css"]
            assert ask(client, "/assets/b.css").status == 404
            assert json.loads(ask(client, "/app").body)["PATH_INFO"] == "/app"


def test_a_file_that_appears_in_an_overlay_or_disappears_is_seen(tmp_path):
    with overlaying(tmp_path) as server:
        assert server.get("/new.txt")["Content-Type"] == "application/json"
        (tmp_path / "new.txt").write_bytes(b"new")
        eventually(lambda: server.get("/new.txt").body == b"new", "the file")
        (tmp_path / "new.txt").unlink()
        eventually(lambda: server.get("/new.txt")["Content-Type"] == "application/json", "the application")


def test_an_error_page_has_a_body_that_fits(server):
    with server.client() as client:
        for target in ("/assets/no", "/assets/%zz", "/assets/../x"):
            got = ask(client, target)
            assert got["Content-Type"].startswith("text/html")
            assert str(got.status).encode() in got.body
            head = ask(client, target, method="HEAD")
            assert fields_of(head) == fields_of(got)
