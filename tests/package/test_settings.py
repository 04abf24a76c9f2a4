"""Option values from the command line, the environment and files."""

import json
import os
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path

import pytest
from harness.tools import with_tools

from tailrace.cli.option import FUNCTIONS, Place
from tailrace.cli.options import CONFLICTS, OPTIONS
from tailrace.cli.settings import Setting, from_keywords, from_the_platform, resolve, without_effect
from tailrace.errors import ConfigError
from tailrace.system import cgroup


def test_without_anything_the_defaults_hold(tmp_path):
    settings = resolve({}, {}, directory=tmp_path)
    values = asdict(settings.effective)
    del values["machine"]
    local = ("unix", "127.0.0.0/8", "::1")
    assert values == {option.name: option.default for option in OPTIONS} | {"trusted_proxies": local}
    assert all(setting.source.startswith("default") for setting in settings.values())


def test_debug_and_reload_have_one_worker_and_a_breakpoint_is_no_hang():
    assert from_keywords({"workers": 4}).effective.workers == 4
    assert from_keywords({"workers": 4, "reload": True}).effective.workers == 1
    debug = from_keywords({"workers": 4, "debug": True, "hang_timeout": 30}).effective
    assert (debug.workers, debug.hang_timeout) == (1, 0.0)


def test_settings_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        from_keywords({}).effective.workers = 2


def test_the_command_line_beats_the_environment_beats_the_file(tmp_path):
    (tmp_path / "tailrace.toml").write_text("threads = 2\nmax_queue = 3\nkeepalive_timeout = 4\n")
    environ = {"TAILRACE_THREADS": "5", "TAILRACE_MAX_QUEUE": "6", "PATH": "/bin"}
    settings = resolve({"threads": "7"}, environ, directory=tmp_path)
    assert settings["threads"] == (7, "command line: --threads")
    assert settings["max_queue"] == (6, "TAILRACE_MAX_QUEUE")
    assert settings["keepalive_timeout"] == (4.0, str(tmp_path / "tailrace.toml"))
    assert settings["write_timeout"].source == "default"


def test_a_flag_overrides_a_file(tmp_path):
    (tmp_path / "tailrace.toml").write_text('debug = true\naccess_log = "x.log"\n')
    settings = resolve({"debug": False, "access_log": ""}, {}, directory=tmp_path)
    assert settings["debug"].value is False
    assert settings["access_log"].value is None


def test_pyproject_is_read_when_there_is_no_tailrace_toml(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.tailrace]\napp = "shop:app"\nmax-body = "10MiB"\n[tool.other]\nx = 1\n'
    )
    settings = resolve({}, {}, directory=tmp_path)
    assert settings["app"].value == "shop:app"
    assert settings["max_body"] == (10 << 20, f"{tmp_path / 'pyproject.toml'} [tool.tailrace]")
    (tmp_path / "tailrace.toml").write_text('app = "other:app"\n')
    settings = resolve({}, {}, directory=tmp_path)
    assert (settings["app"].value, settings["max_body"].source) == ("other:app", "default")


def test_a_pyproject_without_our_table_is_nothing(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert resolve({}, {}, directory=tmp_path)["app"].source == "default"


def test_a_named_file_replaces_the_found_one(tmp_path):
    (tmp_path / "tailrace.toml").write_text("threads = 2\n")
    (tmp_path / "other.toml").write_text("max_queue = 9\n")
    (tmp_path / "third.toml").write_text("max_queue = 10\n")
    named = str(tmp_path / "other.toml")
    environ = {"TAILRACE_CONFIG": str(tmp_path / "third.toml")}
    assert resolve({}, {}, named, tmp_path)["threads"].source == "default"
    assert resolve({}, environ, named, tmp_path)["max_queue"] == (9, named)
    assert resolve({}, environ, None, tmp_path)["max_queue"].value == 10


def test_debug_logs_responses_unless_an_access_log_is_chosen(tmp_path):
    def logs(**command_line):
        settings = resolve({"debug": True, **command_line}, {}, directory=tmp_path)
        return settings["access_log"].value, settings["access_log_format"].value

    assert logs() == ("-", "{method} {target} {status} {bytes} bytes {duration_ms} ms")
    assert logs(access_log_format="json") == ("-", "json")
    assert logs(access_log="/var/log/shop.log") == ("/var/log/shop.log", "combined")


@pytest.mark.parametrize(
    ("command_line", "environ", "found"),
    [
        ({"reload": True}, {}, (1.0, "default with --reload")),
        ({"reload": True, "graceful_timeout": 30}, {}, (30.0, "command line: --graceful-timeout")),
        ({"reload": True}, {"TAILRACE_GRACEFUL_TIMEOUT": "20"}, (20.0, "TAILRACE_GRACEFUL_TIMEOUT")),
        ({}, {}, (20.0, "default")),
    ],
)
def test_with_reload_the_default_of_the_graceful_timeout_is_a_second(tmp_path, command_line, environ, found):
    assert resolve(command_line, environ, directory=tmp_path)["graceful_timeout"] == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thread = 3", r"unknown key 'thread'; did you mean threads\?"),
        pytest.param(
            "worker_class = 3",
            r"unknown key 'worker_class'; requests run in threads by default; --gevent",
            marks=with_tools,
        ),
        ("zzz = 3", r"unknown key 'zzz'; `tailrace config` lists"),
        ("threads = 0", r"threads = 0: must be at least 1"),
        ('threads = "many"', r"threads = 'many': must be a whole number"),
        ("max_body = " + "9" * 99, r"max_body = 9{99}: must be at most 1024TiB"),
        ("max_body = " + "9" * 5000, r"not valid TOML"),
        ("bind = []", r"must name at least one"),
        ("threads = ", r"not valid TOML"),
        ("[tailrace]\nthreads = 1", r"unknown key 'tailrace'; in this file, options belong at the top level: remove"),
        ("[tool.tailrace]\nthreads = 1", r"unknown key 'tool'; in this file, options belong at the top level: remove"),
        ("\nworkers = auto", r"Invalid value \(at line 2, column 11\); write workers = \"auto\"$"),
        ("bind = 0.0.0.0:8000 # all", r"not valid TOML: .*; write bind = \"0\.0\.0\.0:8000\"$"),
        ("app=shop:make()", r"; write app = \"shop:make\(\)\"$"),
        ("gevent = True", r"; write gevent = true$"),
        ("bind = ['a", r"not valid TOML: [^;]*$"),
        ('underscore_headers = "ignore"', r"must be one of drop, keep, refuse"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file(tmp_path, text, message):
    (tmp_path / "tailrace.toml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        resolve({}, {}, directory=tmp_path)
    assert str(tmp_path / "tailrace.toml") in str(caught.value)
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("TAILRACE_THREADS", "x", r"TAILRACE_THREADS = 'x': must be a whole number"),
        ("TAILRACE_DEBUG", "perhaps", r"TAILRACE_DEBUG = 'perhaps': must be true or false"),
    ],
)
def test_a_mistake_in_the_environment_is_named(tmp_path, variable, text, message):
    with pytest.raises(ConfigError, match=message):
        resolve({}, {variable: text}, directory=tmp_path)


@with_tools
def test_a_variable_that_is_no_option_is_a_warning_that_names_the_nearest(tmp_path):
    said = []
    environ = {"TAILRACE_TREADS": "3", "TAILRACE_PORT": "8000", "TAILRACE_MAX_QUEUE": "9", "OTHER": "x"}
    # It says where programs publish.
    environ["TAILRACE_PUBLISH_URL"] = "127.0.0.1:5561"
    settings = resolve({}, environ, directory=tmp_path, warn=said.append)
    assert settings["max_queue"].value == 9
    assert len(said) == 2
    assert "TAILRACE_TREADS is ignored" in said[0]
    assert "did you mean TAILRACE_THREADS?" in said[0]
    assert "TAILRACE_PORT is ignored: there is no such option; Tailrace calls it TAILRACE_BIND" in said[1]


@pytest.mark.parametrize("service", ["TAILRACE", "TAILRACE_WEB", "TAILRACE_THREADS"])
def test_service_variables_of_kubernetes_are_not_options(tmp_path, service):
    environ = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "80",
        f"{service}_SERVICE_PORT_HTTP_2": "80",
        f"{service}_PORT": "tcp://10.0.0.1:80",
        f"{service}_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        f"{service}_PORT_8000_TCP_PROTO": "tcp",
        f"{service}_PORT_8000_TCP_PORT": "8000",
        f"{service}_PORT_8000_TCP_ADDR": "10.0.0.1",
        f"{service}_PORT_53_UDP_ADDR": "10.0.0.1",
    }
    said = []
    settings = resolve({}, environ, directory=tmp_path, warn=said.append)
    assert said == []
    assert all(setting.source.startswith("default") for setting in settings.values())


def test_a_broken_pyproject_without_our_table_is_nothing(tmp_path):
    for text in (
        b"[project\nname = ",
        b"[project]\nname = '\xff'\n",
        b"# about [tool.tailrace]\n[",
        b'[tool.x]\na = "',
    ):
        (tmp_path / "pyproject.toml").write_bytes(text)
        assert resolve({}, {}, directory=tmp_path)["app"].source == "default"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[tool.tailrace]\nthreads = 3\nmax_queue = \n", r"pyproject\.toml: not valid TOML: .*line 3"),
        (b"[project]\nname = x\n[tool.tailrace]\nthreads = 3\n", "line 2"),
        (b"[ tool . 'tailrace' ]\nthreads =\n", "line 2"),
        (b"tool.tailrace.threads =\n", "line 1"),
        (b"[tool.tailrace]\n# \xff\n", r"not UTF-8 \(at line 2\)"),
    ],
)
def test_a_broken_pyproject_with_our_table_is_an_error_that_names_the_line(tmp_path, text, message):
    (tmp_path / "pyproject.toml").write_bytes(text)
    with pytest.raises(ConfigError, match=message):
        resolve({}, {}, directory=tmp_path)


def test_a_broken_pyproject_that_is_named_is_an_error(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project\n")
    with pytest.raises(ConfigError, match="line 1"):
        resolve({}, {}, str(tmp_path / "pyproject.toml"))


def test_a_settings_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml: no such file; check --config or TAILRACE_CONFIG"):
        resolve({}, {}, str(tmp_path / "absent.toml"))
    with pytest.raises(ConfigError, match="this is a directory"):
        resolve({}, {"TAILRACE_CONFIG": str(tmp_path)})
    with pytest.raises(ConfigError, match="cannot be read: Not a directory"):
        resolve({}, {}, "/dev/null/x.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve({}, {}, "a\0b")


def test_settings_may_come_through_a_pipe(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, b"threads = 7\n")
    os.close(writer)
    try:
        assert resolve({}, {}, f"/dev/fd/{reader}")["threads"].value == 7
    finally:
        os.close(reader)


def test_addresses_in_a_variable_are_separated(tmp_path):
    settings = resolve({}, {"TAILRACE_BIND": ":80 unix:/run/x.sock,fd://3"}, directory=tmp_path)
    assert settings["bind"].value == (":80", "unix:/run/x.sock", "fd://3")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10.0.0.0/8", ("10.0.0.0/8",)),
        ("unix,10.0.0.0/8, ::1", ("unix", "10.0.0.0/8", "::1")),
        ("*", ("*",)),
        ("none", ()),
    ],
)
def test_trusted_proxies_are_a_list_that_may_be_empty(tmp_path, text, value):
    given = {"trusted_proxies": [text]}
    assert resolve(given, {}, directory=tmp_path)["trusted_proxies"].value == value
    assert resolve({}, {"TAILRACE_TRUSTED_PROXIES": text}, directory=tmp_path)["trusted_proxies"].value == value


@pytest.mark.parametrize("text", ["localhost", "10.0.0.1/8", "10.0.0.1:80", "unix,nobody", "10.0.0.0/8,none"])
def test_what_is_no_trusted_proxy_is_an_error_that_names_what_is_right(tmp_path, text):
    for variable in ("TAILRACE_TRUSTED_PROXIES", "FORWARDED_ALLOW_IPS"):
        with pytest.raises(ConfigError, match=rf'{variable} = .*is not an address, a network such as .*"unix" or "\*"'):
            resolve({}, {variable: text}, directory=tmp_path)


def test_the_variable_of_other_servers_counts_where_nothing_else_is_said(tmp_path):
    both = {"FORWARDED_ALLOW_IPS": "10.0.0.1", "TAILRACE_TRUSTED_PROXIES": "10.0.0.2"}
    settings = resolve({}, both, directory=tmp_path)
    assert settings["trusted_proxies"] == (("10.0.0.2",), "TAILRACE_TRUSTED_PROXIES")
    del both["TAILRACE_TRUSTED_PROXIES"]
    assert resolve({}, both, directory=tmp_path)["trusted_proxies"] == (("unix", "10.0.0.1"), "FORWARDED_ALLOW_IPS")
    assert resolve({}, {"FORWARDED_ALLOW_IPS": ""}, directory=tmp_path)["trusted_proxies"].source.startswith("default")
    (tmp_path / "tailrace.toml").write_text('trusted_proxies = ["10.0.0.3"]\n')
    assert resolve({}, both, directory=tmp_path)["trusted_proxies"].value == ("10.0.0.3",)


PLATFORM = {"PORT": "8123", "WEB_CONCURRENCY": "4"}


def test_the_variables_of_a_platform_are_the_defaults(tmp_path):
    settings = resolve({}, PLATFORM, directory=tmp_path)
    assert settings["bind"] == (("0.0.0.0:8123",), "PORT")
    assert settings["workers"] == (4, "WEB_CONCURRENCY")
    assert from_the_platform(settings) == "PORT sets --bind to 0.0.0.0:8123; WEB_CONCURRENCY sets --workers to 4"
    assert resolve({}, {"PORT": "", "WEB_CONCURRENCY": " auto "}, directory=tmp_path)["workers"].value == "auto"


@pytest.mark.parametrize("where", ["command line", "environment", "file"])
def test_every_setting_of_our_own_beats_the_variables_of_a_platform(tmp_path, where):
    """Also if they make no sense."""
    given, environ = {}, {"PORT": "tcp://10.0.0.1:80", "WEB_CONCURRENCY": "many"}
    if where == "command line":
        given = {"bind": [":80"], "workers": "2"}
    elif where == "environment":
        environ |= {"TAILRACE_BIND": ":80", "TAILRACE_WORKERS": "2"}
    else:
        (tmp_path / "tailrace.toml").write_text('bind = ":80"\nworkers = 2\n')
    settings = resolve(given, environ, directory=tmp_path)
    assert (settings["bind"].value, settings["workers"].value) == ((":80",), 2)
    assert from_the_platform(settings) == ""


@pytest.mark.parametrize(
    ("variable", "text", "fault"),
    [
        ("PORT", "http", "must be a whole number; correct it, or set --bind, which takes precedence"),
        ("PORT", "tcp://10.0.0.1:80", "must be a whole number; correct it, or set --bind, which takes precedence"),
        ("PORT", "80 81", "must be a whole number; correct it, or set --bind, which takes precedence"),
        ("PORT", "0", "must be at least 1; correct it, or set --bind, which takes precedence"),
        ("PORT", "65536", "must be at most 65535; correct it, or set --bind, which takes precedence"),
        ("WEB_CONCURRENCY", "0", "must be at least 1, or auto; correct it, or set --workers, which takes precedence"),
    ],
)
def test_a_variable_of_a_platform_without_sense_is_named(tmp_path, variable, text, fault):
    with pytest.raises(ConfigError) as caught:
        resolve({}, {variable: text}, directory=tmp_path)
    assert str(caught.value) == f"{variable} = '{text}': {fault}"


@pytest.mark.parametrize("way", ["debug", "reload"])
def test_one_worker_for_development_is_no_surprise_on_a_platform(tmp_path, way):
    settings = resolve({way: True}, PLATFORM, directory=tmp_path)
    assert without_effect(settings, has_master=False) == []
    assert from_the_platform(settings) == "PORT sets --bind to 0.0.0.0:8123"


def test_keywords_read_no_environment_and_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAILRACE_THREADS", "3")
    monkeypatch.setenv("PORT", "8123")
    monkeypatch.setenv("WEB_CONCURRENCY", "many")
    Path("tailrace.toml").write_text("threads = 2\n")
    assert from_keywords({})["threads"] == (128, "default")
    assert from_keywords({})["bind"] == (("127.0.0.1:8000",), "default")
    assert from_keywords({"threads": 9})["threads"] == (9, "argument")


def test_unknown_keywords_are_errors():
    with pytest.raises(ConfigError, match=r"unknown option 'max_bodys'; did you mean max_body\?"):
        from_keywords({"max_bodys": 1})


@pytest.mark.parametrize("place", list(Place), ids=lambda place: place.value)
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_is_taken_has_no_effect_or_is_refused_as_the_table_says(option, place):
    value = True if isinstance(option.default, bool) else option.example or option.default
    reason = option.absent.get(place)
    if place in FUNCTIONS:
        if reason is None:
            assert from_keywords({option.name: value}, place)[option.name].source == "argument"
        else:
            with pytest.raises(ConfigError, match=rf"^{place.value} does not take '{option.name}': [^\n]+$") as caught:
                from_keywords({option.name: value}, place)
            assert reason in str(caught.value)
        return
    name = {Place.RELOAD: "reload", Place.GEVENT: "gevent"}.get(place, "debug")
    ways = {} if place.value.startswith("without ") else {name: True}
    if option.name in ways:
        return
    settings = from_keywords({option.name: value, **ways})
    has_master = place is not Place.DEBUG_ALONE
    if (option.name, place) in CONFLICTS:
        with pytest.raises(
            ConfigError, match=f"^{option.flag} cannot be combined with {place.value}: [^\n]+; remove one$"
        ):
            without_effect(settings, has_master=has_master)
        return
    try:
        said = without_effect(settings, has_master=has_master)
    except ConfigError:  # --debug --gevent, seen from its other side
        assert option.name == "gevent"
        assert place in (Place.DEBUG, Place.DEBUG_ALONE)
        return
    if reason is not None:
        assert [line.endswith(f": {reason}") and option.flag in line for line in said] == [True]
    else:
        assert not [line for line in said if place.value in line]


def test_options_without_effect_for_one_reason_share_a_line():
    settings = from_keywords({"debug": True, "max_rss": 1, "statsd": "::1", "workers": 2, "preload": False})
    assert without_effect(settings, has_master=False) == [
        "--workers has no effect with --debug: only one process handles requests",
        "--max-rss, --statsd have no effect with --debug without --reload: there is no master process",
    ]
    assert without_effect(from_keywords({}), has_master=False) == []


def test_limits_of_clients_are_of_no_effect_where_every_peer_is_trusted():
    limits = {"max_requests_per_client": "5/s", "max_connections_per_client": 0}
    assert without_effect(from_keywords({"trusted_proxies": "*", **limits}), has_master=True) == [
        "--max-requests-per-client has no effect with --trusted-proxies *: trusted peers are not limited; name the "
        "addresses of the proxies instead"
    ]
    assert without_effect(from_keywords({"trusted_proxies": "10.0.0.0/8", **limits}), has_master=True) == []


@pytest.mark.parametrize(
    ("changed", "is_said"),
    [
        ({}, True),
        ({"workers": "auto", "bind": ["https://:8443", "https+unix:/run/shop.sock"]}, True),
        ({"bind": ["https://:8443", "http://127.0.0.1:8000"]}, False),
        ({"bind": "uwsgi://127.0.0.1:9000"}, False),
        ({"workers": 1}, False),
        ({"sticky": None}, False),
    ],
)
def test_sticky_is_of_no_effect_where_all_connections_are_encrypted(changed, is_said):
    given = {"sticky": "cookie:SESSION", "workers": 2, "bind": "https://:8443", **changed}
    said = without_effect(from_keywords(given), has_master=True)
    assert len(said) == is_said
    for line in said:
        assert line.startswith("--sticky has no effect if all addresses use https://: ")
        assert "; terminate TLS in a proxy in front" in line


@pytest.mark.parametrize("way", ["debug", "reload"])
def test_sticky_is_of_no_effect_for_one_reason(way):
    given = {"sticky": "cookie:SESSION", "bind": "https://:8443", way: True}
    (line,) = without_effect(from_keywords(given), has_master=True)
    assert f"--sticky has no effect with --{way}" in line


_NO_PLACE = "must be query:, cookie: or header:, followed by a name, such as cookie:SESSION"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", _NO_PLACE),
        ("sid", _NO_PLACE),
        ("body:sid", _NO_PLACE),
        ("cookie", _NO_PLACE),
        ("cookie:", _NO_PLACE),
        ("Cookie:x", "write cookie: instead of Cookie:"),
        ("HEADER:x", "write header: instead of HEADER:"),
        (" query:x", _NO_PLACE),
        ("header:Bad Name", "the name of a header must not contain ' '"),
        ("header: Name", "the name of a header must not contain ' '"),
        ("header:a:b", "the name of a header must not contain ':'"),
        ("cookie:a=b", "the name of a cookie must not contain '='"),
        ("cookie:s\u00e9", "the name of a cookie must not contain '\u00e9'"),
        ("query:a&b", "the name of a query parameter must not contain '&'"),
        ("query:" + "x" * 65, "the name must have at most 64 characters, not 65"),
    ],
)
def test_the_mistake_in_a_place_of_session_ids_is_named(place, said):
    with pytest.raises(ConfigError) as caught:
        from_keywords({"sticky": place})
    assert str(caught.value) == f"sticky = {place!r}: {said}"


@pytest.mark.parametrize(
    "place", ["query:a.b_c~-9", "cookie:__Host-sid", "header:Mcp-Session-Id", "cookie:" + "x" * 64]
)
def test_places_of_session_ids(place):
    assert from_keywords({"sticky": place})["sticky"].value == place


@pytest.mark.parametrize(
    ("path", "instead"), [("/ws/*", "/ws/"), ("/ws*", "/ws/"), ("/ws/**", "/ws/"), ("/*", "/"), ("/a*b/*", "/a*b/")]
)
def test_a_path_of_web_sockets_does_not_end_with_an_asterisk(path, instead):
    with pytest.raises(ConfigError) as caught:
        from_keywords({"websocket_events": [path]})
    assert str(caught.value).endswith(f": a path that ends with / is a prefix, so write {instead} instead of {path}")
    assert from_keywords({"websocket_events": [instead]})["websocket_events"].value == (instead,)


def test_a_long_value_is_shown_by_its_beginning():
    with pytest.raises(ConfigError, match=r"^--threads '9{199}\.\.\.: must be at most 4096$"):
        resolve({"threads": "9" * 5000}, {})


def test_every_option_can_come_from_each_source(tmp_path):
    for option in OPTIONS:
        if option.example is None:
            continue
        wanted = option.kind.read(option.example)
        text = " ".join(map(str, option.example)) if isinstance(option.example, list) else str(option.example)
        (tmp_path / "one.toml").write_text(f"{option.name} = {json.dumps(option.example)}\n")
        assert resolve({}, {}, str(tmp_path / "one.toml"))[option.name].value == wanted
        assert resolve({}, {option.variable: text}, directory=tmp_path / "none")[option.name].value == wanted
        assert resolve({option.name: option.example}, {}, directory=tmp_path / "none")[option.name].value == wanted


@pytest.mark.parametrize(
    ("bind", "is_local"),
    [
        ([], True),
        (["127.0.0.1:80", "[::1]:80", "localhost:81", "unix:/run/a.sock", "uwsgi://127.0.0.2:1"], True),
        (["127.0.0.1:80", ":81"], False),
        (["192.0.2.1:80"], False),
        (["[::]:80"], False),
        (["fd://3"], False),
        (["not an address"], False),
    ],
)
def test_a_server_that_only_this_machine_can_reach_trusts_the_proxies_on_it(tmp_path, bind, is_local):
    given = {"bind": bind} if bind else {}
    wanted = ("unix", "127.0.0.0/8", "::1") if is_local else ("unix",)
    assert resolve(given, {}, directory=tmp_path)["trusted_proxies"].value == wanted
    assert from_keywords(given)["trusted_proxies"].value == wanted
    own = resolve({**given, "trusted_proxies": "none"}, {}, directory=tmp_path)["trusted_proxies"]
    assert (own.value, own.source) == ((), "command line: --trusted-proxies")


def test_the_machine_is_read_once_for_one_start(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(cgroup, "machine", lambda: read.append(1) or cgroup.Machine(2))
    settings = resolve({"workers": "auto"}, {}, directory=tmp_path)
    without_effect(settings, has_master=True)
    changed = settings.changed({"bind": Setting(("fd://3",), "LISTEN_FDS")})
    assert (settings.effective.worker_count, changed.effective.worker_count) == (2, 2)
    assert (changed.effective.bind, len(read)) == (("fd://3",), 1)
