"""The values of the options of static files."""

from pathlib import Path

import pytest
from harness.settings import server_settings
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.options import BY_NAME


def read(name, raw):
    return BY_NAME[name].kind.read(raw)


@pytest.mark.parametrize(
    ("written", "mounts"),
    [
        ("/assets=./dist", (("/assets", "./dist"),)),
        ("/assets/=dist", (("/assets", "dist"),)),
        ("/=dist", (("", "dist"),)),
        (["/a%20b=/srv/c=d"], (("/a b", "/srv/c=d"),)),
        ("/a=x /b/c=y", (("/a", "x"), ("/b/c", "y"))),
        (["/a=a folder"], (("/a", "a folder"),)),
        ({"/a": "x", "/b": Path("/srv/y")}, (("/a", "x"), ("/b", "/srv/y"))),
        ([("/a", "x")], (("/a", "x"),)),
        ("", ()),
    ],
)
def test_a_static_folder_has_the_path_of_its_urls(written, mounts):
    assert read("static", written) == mounts


# What is refused, by option and message.
REFUSED = {
    "static": {
        r"^must be PREFIX=FOLDER, such as /assets=\./dist$": ["/assets"],
        "must begin with a slash, like any URL path: /assets=dist": ["assets=dist"],
        r"must name a folder, as in /assets=\./dist": ["/assets="],
        "empty parts, . or ..": ["/a/../b=x", "/a/%2e%2e/b=x", "//a=x"],
        "cannot contain [?]": ["/a?b=x"],
        "control characters": ["/%00=x", ["/a=x\n"]],
        "UTF-8": ["/%ff=x"],
        "must name /a only once": ["/a=x /a/=y"],
        "must name / only once": [["/=x", "/=y"]],
        "must be a list of PREFIX=FOLDER, or a table": [[1], {"/a": 1}, True, b"/a=x"],
    },
    "sendfile_root": {
        "must name /srv only once": [["/srv", "/srv"]],
        "must name /in only once": [["/in=x", "/in=y"]],
        "must begin with a slash": [["in=x"]],
        "must name a folder": [[""], ["="], ["/in="]],
        "empty parts, . or ..": [["/a/../b=x"]],
        "control characters": [["/a\nb"]],
        "must be a list of": [[1]],
    },
    "static_cache": {
        "must be PATTERN=VALUE, such as /assets=1y,immutable": ["/assets"],
        "must have a pattern": ["=1y"],
        "must have a value, such as 1y or no-cache; none: no Cache-Control field": ["/="],
        "a pattern with a slash must begin with one: /a/b.js": ["a/b.js=1y"],
        r"unknown word 'imutable'; did you mean immutable\?; choose from a time such as 1y.*no-cache": ["/=imutable"],
        "unknown word 'xxxx'; choose from a time": ["/=xxxx"],
        "must contain max-age only once": ["/=1y,2y"],
        "must stand alone": ["/=none,1y"],
        "unknown word": ["/=1.5h", "/=-1", "/=500ms", "/=immutable=5"],
        "too long: at most": ["/=100y", "/=" + "9" * 5000],
        "control characters": [["/=1y\r\nX: y"]],
        "must name / only once": ["/=1y /=2y"],
    },
    "mime": {
        r"must be \.EXT=TYPE, such as \.data=text/plain": [".data"],
        r"must begin with an extension, such as \.data=text/plain": ["data=text/plain"],
        "must begin with an extension": [".=a/b", ".tar.gz=a/b"],
        r"must name a media type, such as \.data=text/plain": [".data=text", [".data=text/plain; charset=\u00fc"]],
        "control characters": [[".data=text/plain\r\nX: y"]],
        r"must name \.data only once": [".data=a/b .DATA=c/d"],
    },
    "static_index": {"must": ["a/index.html", "..", ["/"], None, "a\0"]},
}


@pytest.mark.parametrize(
    ("option", "written", "message"),
    [
        (option, each, said)
        for option, messages in REFUSED.items()
        for said, wrong in messages.items()
        for each in wrong
    ],
)
def test_what_makes_no_sense_is_refused(option, written, message):
    with pytest.raises(ValueError, match=message):
        read(option, written)


@given(st.text(st.characters(min_codepoint=33, exclude_categories=["Cs", "Cc"]), min_size=1), st.text(min_size=1))
def test_a_static_folder_that_is_shown_reads_back(name, folder):
    name, folder = name.replace("/", "x"), "".join(filter(str.isprintable, folder)) or "x"
    if name not in (".", ".."):
        value = ((f"/{name}", folder),)
        assert read("static", BY_NAME["static"].kind.write(value)) == value


@pytest.mark.parametrize(
    ("written", "roots", "shown"),
    [
        ("/srv/media", ((None, "/srv/media"),), ["/srv/media"]),
        ("media /in=x /srv/a", ((None, "media"), ("/in", "x"), (None, "/srv/a")), ["media", "/in=x", "/srv/a"]),
        (["=/srv/a=b"], ((None, "/srv/a=b"),), ["=/srv/a=b"]),
        (["/in=/srv/a=b", "a folder"], (("/in", "/srv/a=b"), (None, "a folder")), ["/in=/srv/a=b", "a folder"]),
        ("/=x", (("", "x"),), ["/=x"]),
        ({"/in/": Path("/srv")}, (("/in", "/srv"),), ["/in=/srv"]),
        (Path("/srv/a b=c"), ((None, "/srv/a b=c"),), ["=/srv/a b=c"]),
        ([Path("/srv"), ("/in", "x")], ((None, "/srv"), ("/in", "x")), ["/srv", "/in=x"]),
        ("", (), []),
    ],
)
def test_a_folder_of_named_files_stands_alone_or_has_a_path(written, roots, shown):
    assert read("sendfile_root", written) == roots
    assert BY_NAME["sendfile_root"].kind.write(roots) == shown
    assert read("sendfile_root", shown) == roots


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("/assets=1y,immutable", ("/assets", "max-age=31536000, immutable")),
        ("*.html=no-cache", ("*.html", "no-cache")),
        ("*=public,30d", ("*", "public, max-age=2592000")),
        ("robots.txt=12h", ("robots.txt", "max-age=43200")),
        ("/=60", ("/", "max-age=60")),
        ("/=2W", ("/", "max-age=1209600")),
        ("/=Private,No-Store", ("/", "private, no-store")),
        ("/=s-maxage=1h,max-age=5", ("/", "s-maxage=3600, max-age=5")),
        ("/=0", ("/", "max-age=0")),
        ("/=none", ("/", "")),
        (["/= 1d, must-revalidate"], ("/", "max-age=86400, must-revalidate")),
        ({"fingerprinted": "1d"}, ("fingerprinted", "max-age=86400")),
    ],
)
def test_a_cache_rule_has_words_and_times(written, rule):
    assert read("static_cache", written) == (rule,)
    shown = BY_NAME["static_cache"].kind.write((rule,))
    assert read("static_cache", shown) == (rule,)
    assert read("static_cache", " ".join(shown)) == (rule,)


@pytest.mark.parametrize(
    ("written", "types"),
    [
        (".data=text/plain", (("data", "text/plain"),)),
        (".GLB=model/gltf-binary .x=a/b+c", (("glb", "model/gltf-binary"), ("x", "a/b+c"))),
        ([".html=text/html; charset=iso-8859-1"], (("html", "text/html; charset=iso-8859-1"),)),
        ({".data": "text/plain"}, (("data", "text/plain"),)),
        ("", ()),
    ],
)
def test_a_media_type_belongs_to_an_extension(written, types):
    assert read("mime", written) == types
    assert read("mime", BY_NAME["mime"].kind.write(types)) == types


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("index.html,index.htm", ("index.html", "index.htm")),
        (["index.html,index.htm"], ("index.html", "index.htm")),
        (["index.html", "index.htm"], ("index.html", "index.htm")),
        ("", ()),
        ([""], ()),
    ],
)
def test_index_files_are_names(written, names):
    assert read("static_index", written) == names


@pytest.mark.parametrize("status", ["200", "404"])
def test_a_page_is_a_file_below_the_folder(status):
    page = ((status, "a/b.html"),)
    assert read("static_fallback", f"{status}=a/b.html") == read("static_fallback", {status: "./a/b.html"}) == page
    # In a program, a status is a number.
    assert (
        read("static_fallback", {int(status): "a/b.html"})
        == read("static_fallback", [(int(status), "a/b.html")])
        == page
    )
    for written in ("/a.html", "../a.html", "a//b", "a/", ".", "", "a\n"):
        with pytest.raises(ValueError, match="must"):
            read("static_fallback", [f"{status}={written}"])


@pytest.mark.parametrize("written", ["index.html", "500=a.html", "=a.html", "200=a 200=b", 7])
def test_only_two_statuses_have_a_page(written):
    with pytest.raises(ValueError, match="must"):
        read("static_fallback", written)


def test_the_core_gets_the_pages_for_missing_files():
    core = settings(static_fallback="404=404.html 200=index.html")
    assert (core["static_not_found"], core["static_fallback"]) == ("404.html", "index.html")


def settings(**changed):
    given = {name: read(name, raw) for name, raw in changed.items()}
    return server_settings(**given).core()


def test_the_core_gets_the_folders_and_the_overlay():
    assert settings()["static_mounts"] == []
    assert settings(static="/a=x", overlay="y")["static_mounts"] == [("/a", "x", False), ("", "y", True)]


def test_the_core_gets_the_folders_of_named_files():
    assert settings(sendfile_root="/srv /in=x")["static_named"] == [(None, "/srv"), ("/in", "x")]


def test_the_rule_for_fingerprinted_files_is_a_setting_of_its_own():
    without = settings()
    assert (without["static_cache"], without["static_fingerprinted"]) == ([], "public, max-age=31536000, immutable")
    given = settings(static_cache="/a=1d fingerprinted=none *.html=no-cache")
    assert given["static_cache"] == [("/a", "max-age=86400"), ("*.html", "no-cache")]
    assert given["static_fingerprinted"] == ""
