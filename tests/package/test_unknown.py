"""Unknown option names, and what other servers call our options."""

import pytest

from tailrace.cli import unknown
from tailrace.cli.options import OPTIONS

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
        ("--trusted-proxy", "Tailrace calls it --trusted-proxies"),
        ("--trusted-proxy-headers", "Tailrace calls it --forwarded-fields"),
        ("--lazy-apps", "each worker loads the application by default"),
        ("--lazy", "each worker loads the application by default"),
        ("-k", "requests run in threads by default; --gevent runs them in greenlets, --threads 1 one at a time"),
        ("--worker-class", "requests run in threads by default; --gevent"),
        ("--wsgi-file", "give the application as an argument"),
        ("--module", "give the application as an argument"),
        ("--master", "a master process runs by default"),
        ("--ini", "--config takes a TOML file"),
        ("--socket", "--bind uwsgi://127.0.0.1:3031 speaks the uwsgi protocol"),
        ("--paste", "`pserve` reads the file"),
        ("--env", "set the variable in the environment, or in the file that --env-file names"),
        ("--pythonpath", "--chdir changes to a directory and imports modules from it"),
        ("--timeout", "--request-timeout limits the time of a request; --hang-timeout"),
        ("--harakiri", "Tailrace calls it --request-timeout"),
        ("--limit-request-field-size", "--header-bytes-limit limits the total size of a request's header fields"),
        ("--limit-concurrency", "--max-connections limits connections; --max-queue"),
        ("--worker-connections", "--max-connections limits connections; with --gevent, --max-greenlets"),
        ("--fd", "Tailrace calls it --bind, as in fd://3"),
        ("--uds", "Tailrace calls it --bind, as in unix:/run/app.sock"),
        (
            "--listen",
            "from uWSGI: Tailrace calls it --backlog; from waitress: Tailrace calls it --bind, as in 127.0.0.1",
        ),
        ("-p", "from gunicorn: Tailrace calls it --pidfile; from uWSGI: Tailrace calls it --workers"),
        ("--max-worker-lifetime", "Tailrace calls it --max-lifetime"),
        ("--reload-on-rss", "Tailrace calls it --max-rss, with a unit: 512MiB"),
        ("--mimefile", "--mime .EXT=TYPE sets the type of one extension"),
        ("--check-static-docroot", "--overlay serves the files of the folder that you name"),
        ("--static-map", "Tailrace calls it --static, which answers 404"),
        ("--static-map2", "Tailrace calls it --static, with the folder that contains the files: /a=FOLDER/a"),
        ("--static-path-mount", "Tailrace calls it --static, with path and folder: /static=FOLDER"),
        ("--static-gzip", "precompressed files such as app.js.gz are sent by default (--static-precompressed)"),
        ("--no-sendfile", "Tailrace uses sendfile"),
        ("--ssl-crl", "Tailrace speaks TLS at addresses that begin with https://"),
        ("--capture-output", "the application's output goes to standard output and"),
        ("-R", "from gunicorn: the application's output goes to standard output and"),
        ("--interface", "Tailrace serves WSGI applications only"),
        ("--log-syslog", "Tailrace calls it --log, as in --log syslog"),
        ("--logger-class", "attach handlers to the loggers tailrace, tailrace.error and tailrace.access"),
        ("--no-access-log", "there is no access log by default"),
        ("--worker-tmp-dir", "heartbeats are in shared memory"),
        ("--reload-dir", "Tailrace calls it --reload-include"),
        ("--reload-extra-file", "Tailrace calls it --reload-include"),
        ("--reload-ignore-dirs", "Tailrace calls it --reload-exclude, with a glob: '**/NAME'"),
        ("--touch-reload", "SIGHUP to the master replaces the workers; for development, --reload watches the code"),
        ("--lifespan", "Tailrace serves WSGI applications, which have no WebSockets"),
        (
            "--loop",
            "from uWSGI: --gevent runs each request in a greenlet; Tailrace has no other loop engine; from granian: T",
        ),
        ("--spew", "run a tool such as py-spy"),
        ("--emperor-tyrant", "run one server per site"),
        ("--no-http1-keep-alive", "keep-alive is on by default"),
        ("--backpressure", "--threads limits concurrent requests"),
        ("--http2", "Tailrace speaks HTTP/1"),
        ("--metrics", "--status ADDRESS answers /metrics for Prometheus"),
        ("--statsd-prefix", "--statsd sends names that begin with `tailrace.`"),
        ("--limit-max-requests-jitter", "Tailrace calls it --max-requests-jitter"),
        ("--http1-header-read-timeout", "Tailrace calls it --header-timeout, in seconds, or with a unit: 500ms"),
        ("--inbuf-overflow", "Tailrace calls it --body-memory"),
        ("--clear-untrusted-proxy-headers", "forwarding headers from untrusted proxies are removed"),
        ("--ssl-ca-certs", "--client-ca names the authorities"),
        ("--daemonize", "Tailrace stays in the foreground"),
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
