"""Settings of static files that cannot do what they say."""

import pytest

from tailrace.cli.settings import from_keywords, without_effect

NAME_ONE = "name a folder, as in --static /assets=./dist"


def warnings(**given):
    return without_effect(from_keywords(given), has_master=False)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"static_memory": "1MiB"}, f"--static-memory has no effect without --static or --overlay: {NAME_ONE}"),
        (
            {"static_memory": "1MiB", "static_cache": "*.html=1d", "sendfile_root": "/srv"},
            f"--static-cache, --static-memory have no effect without --static or --overlay: {NAME_ONE}",
        ),
        ({"static_index": "a.htm", "overlay": "public"}, f"--static-index has no effect without --static: {NAME_ONE}"),
        ({"mime": ".a=b/c"}, f"--mime has no effect without --static or --overlay or --sendfile-root: {NAME_ONE}"),
        (
            {"static": {"/": "dist"}},
            "--static /=dist: the application is never called, because this folder answers every path; use --overlay "
            "dist, which leaves missing files to the application, or a path, as in --static /assets=dist",
        ),
        (
            {"static": {"/assets": "dist", "/m": "media"}, "static_cache": "/asset=1y"},
            "--static-cache /asset=...: no file has such a path, because the folders are served below /assets/, /m/; a "
            "pattern is a URL path, or a file name such as *.html",
        ),
        (
            {"static": {"/assets": "dist"}, "static_cache": "/img/*.png=1y"},
            "--static-cache /img/*.png=...: no file has such a path, because the folders are served below /assets/; a "
            "pattern is a URL path, or a file name such as *.html",
        ),
    ],
)
def test_a_setting_that_cannot_do_what_it_says_is_named_with_the_remedy(given, line):
    assert warnings(**given) == [line]


@pytest.mark.parametrize(
    "pattern", ["/", "/assets", "/assets/", "/assets/a.js", "/as*", "/*.js", "*.js", "fingerprinted"]
)
def test_a_pattern_that_fits_a_folder_is_no_reason_for_a_warning(pattern):
    assert warnings(static={"/assets": "dist"}, static_cache=f"{pattern}=1y") == []
    assert warnings(overlay="public", static_cache=f"{pattern}=1y") == []


def test_files_that_the_application_names_have_types_and_links():
    assert warnings(sendfile_root="/srv", mime=".a=b/c", static_symlinks="never") == []


@pytest.mark.parametrize("ways", [(), ("--debug",)])
def test_a_server_says_so_at_its_start_and_what_it_serves_from_where(command, pong, ways):
    (pong / "site").mkdir()
    folders = ("--static", "/=site", "--sendfile-root", "site", "--sendfile-root", "/own=site")
    server = command("pong:app", "--bind", "127.0.0.1:0", *folders, *ways)
    server.until("WARNING: --static /=site: the application is never called")
    site = pong / "site"
    server.until(f"files: / from {site}, X-Sendfile from {site}, X-Accel-Redirect /own/ from {site}\n")


def test_an_overlay_is_told_with_the_application_behind_it(command, pong):
    server = command("pong:app", "--bind", "127.0.0.1:0", "--overlay", ".")
    server.until(f"files: / from {pong} or the application\n")
