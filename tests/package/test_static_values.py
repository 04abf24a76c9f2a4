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


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("/assets", r"^must be PREFIX=FOLDER, such as /assets=\./dist$"),
        ("assets=dist", "must begin with a slash, like any URL path: /assets=dist"),
        ("/assets=", r"must name a folder, as in /assets=\./dist"),
        ("/a/../b=x", "empty parts, . or .."),
        ("/a/%2e%2e/b=x", "empty parts, . or .."),
        ("//a=x", "empty parts"),
        ("/a?b=x", "cannot contain [?]"),
        ("/%00=x", "control characters"),
        (["/a=x\n"], "control characters"),
        ("/%ff=x", "UTF-8"),
        ("/a=x /a/=y", "must name /a only once"),
        (["/=x", "/=y"], "must name / only once"),
        ([1], "must be a list of PREFIX=FOLDER, or a table"),
        ({"/a": 1}, "must be a list of PREFIX=FOLDER, or a table"),
        (True, "must be a list of PREFIX=FOLDER, or a table"),
        (b"/a=x", "must be a list of PREFIX=FOLDER, or a table"),
    ],
)
def test_what_is_no_static_folder_is_refused(written, message):
    with pytest.raises(ValueError, match=message):
        read("static", written)


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
    ("written", "message"),
    [
        (["/srv", "/srv"], "must name /srv only once"),
        (["/in=x", "/in=y"], "must name /in only once"),
        (["in=x"], "must begin with a slash"),
        ([""], "must name a folder"),
        (["="], "must name a folder"),
        (["/in="], "must name a folder"),
        (["/a/../b=x"], "empty parts, . or .."),
        (["/a\nb"], "control characters"),
        ([1], "must be a list of"),
    ],
)
def test_what_is_no_folder_of_named_files_is_refused(written, message):
    with pytest.raises(ValueError, match=message):
        read("sendfile_root", written)


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
    ("written", "message"),
    [
        ("/assets", "must be PATTERN=VALUE, such as /assets=1y,immutable"),
        ("=1y", "must have a pattern"),
        ("/=", "must have a value, such as 1y or no-cache; none: no Cache-Control field"),
        ("a/b.js=1y", "a pattern with a slash must begin with one: /a/b.js"),
        ("/=imutable", r"unknown word 'imutable'; did you mean immutable\?; choose from a time such as 1y.*no-cache"),
        ("/=xxxx", "unknown word 'xxxx'; choose from a time"),
        ("/=1y,2y", "must contain max-age only once"),
        ("/=none,1y", "must stand alone"),
        ("/=1.5h", "unknown word"),
        ("/=-1", "unknown word"),
        ("/=500ms", "unknown word"),
        ("/=immutable=5", "unknown word"),
        ("/=100y", "too long: at most"),
        ("/=" + "9" * 5000, "too long: at most"),
        (["/=1y\r\nX: y"], "control characters"),
        ("/=1y /=2y", "must name / only once"),
    ],
)
def test_what_is_no_cache_rule_is_refused(written, message):
    with pytest.raises(ValueError, match=message):
        read("static_cache", written)


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
    ("written", "message"),
    [
        (".data", r"must be \.EXT=TYPE, such as \.data=text/plain"),
        ("data=text/plain", r"must begin with an extension, such as \.data=text/plain"),
        (".=text/plain", "must begin with an extension"),
        (".tar.gz=application/gzip", "must begin with an extension"),
        (".data=text", r"must name a media type, such as \.data=text/plain"),
        ([".data=text/plain\r\nX: y"], "control characters"),
        ([".data=text/plain; charset=\u00fc"], "must name a media type"),
        (".data=a/b .DATA=c/d", r"must name \.data only once"),
    ],
)
def test_what_is_no_media_type_is_refused(written, message):
    with pytest.raises(ValueError, match=message):
        read("mime", written)


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


@pytest.mark.parametrize("written", ["a/index.html", "..", ["/"], [1], 7, None, "a\0"])
def test_what_are_no_index_files_is_refused(written):
    with pytest.raises(ValueError, match="must"):
        read("static_index", written)


@pytest.mark.parametrize("name", ["spa", "static_404"])
def test_a_page_is_a_file_below_the_folder(name):
    assert read(name, "a/b.html") == read(name, "./a/b.html") == "a/b.html"
    assert read(name, "") is None
    for written in ("/a.html", "../a.html", "a//b", "a/", ".", 7, "a\n"):
        with pytest.raises(ValueError, match="must"):
            read(name, written)


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
