"""Unknown option names, and what other servers call our options."""

import sys

import pytest
from harness.tools import with_tools

from tailrace.cli import unknown
from tailrace.cli.options import OPTIONS

pytestmark = with_tools
FLAGS = {flag: option.name for option in OPTIONS for flag in (option.flag, option.short) if flag}
FLAGS |= {"--no-" + option.flag[2:]: option.name for option in OPTIONS if isinstance(option.default, bool)}


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--tread", "did you mean --threads?"),
        ("--max_body", "did you mean --max-body?"),
        ("--wrokers", "did you mean --workers?"),
        ("--no-debg", "did you mean --no-debug?"),
        ("--access-log-fromat", "did you mean --access-log-format?"),
        ("--prot", "Tailrace calls it --bind, as in 127.0.0.1:8000"),
        ("--forwarded-alow-ips", "Tailrace calls it --trusted-proxies"),
        ("--acc", "did you mean --access-log?"),
        # Several options begin so, and none of them is the beginning of all.
        ("--reque", "`tailrace config` lists all options"),
        ("--unheard-of", "`tailrace config` lists all options"),
        # Of these, no option of ours is near.
        ("--chunk", "`tailrace config` lists all options"),
        ("--no-threads", "`tailrace config` lists all options"),
        ("-Z", "`tailrace config` lists all options"),
    ],
)
def test_the_nearest_name_is_suggested_only_if_it_is_near(flag, hint):
    assert unknown.nearest(flag, FLAGS) == f"; {hint}"


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--forwarded-allow-ips", "Tailrace calls it --trusted-proxies"),
        ("--worker-class", "requests run in threads by default; --gevent"),
        ("--timeout", "--request-timeout limits the time of a request"),
        ("--socket", "--bind uwsgi://127.0.0.1:3031 speaks the uwsgi protocol"),
        ("-p", "from gunicorn: Tailrace calls it --pidfile; from uWSGI: Tailrace calls it --workers"),
        # All options of uWSGI that begin so.
        ("--emperor-tyrant", "run one server per site"),
        ("--reload-on-rss", "Tailrace calls it --max-rss, with a unit: 512MiB"),
        ("--http1-header-read-timeout", "Tailrace calls it --header-timeout, in seconds, or with a unit: 500ms"),
        ("--trusted-proxy", "Tailrace calls it --trusted-proxies"),
        ("--static-map", "Tailrace calls it --static, which answers 404"),
        ("--no-http1-keep-alive", "keep-alive is on by default"),
    ],
)
def test_an_option_of_another_server_is_told_by_what_it_does(flag, hint):
    assert unknown.nearest(flag, FLAGS).startswith(f"; {hint}")


def test_the_name_is_that_of_the_place_where_the_unknown_one_stands():
    keys = {option.name: option.name for option in OPTIONS}
    assert unknown.nearest("forwarded_allow_ips", keys) == "; Tailrace calls it trusted_proxies"
    variables = {option.variable: option.name for option in OPTIONS}
    assert unknown.nearest("TAILRACE_TREADS", variables) == "; did you mean TAILRACE_THREADS?"
    assert unknown.nearest("TAILRACE_PORT", variables) == "; Tailrace calls it TAILRACE_BIND, as in 127.0.0.1:8000"


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--tread", "did you mean --threads?"),
        (
            "--worker-class",
            "`tailrace config` lists all options; `pip install 'tailrace[tools]'` adds hints for the options of other "
            "servers",
        ),
    ],
)
def test_without_the_tools_only_our_own_names_are_suggested(flag, hint, monkeypatch):
    monkeypatch.setitem(sys.modules, "tailrace_tools.other_servers", None)
    assert unknown.nearest(flag, FLAGS) == f"; {hint}"
    assert unknown.nearest("--unheard-of", FLAGS, listing="") == ""


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [
        ("", "", 0),
        ("port", "prot", 1),
        ("a", "", 1),
        ("thread", "threads", 1),
        ("tread", "threads", 2),
        ("ini", "bind", 2),
    ],
)
def test_edits(one, other, edits):
    assert unknown.edits(one, other) == unknown.edits(other, one) == edits
