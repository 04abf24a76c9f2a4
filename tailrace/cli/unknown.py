"""Unknown names of options and commands: which one was most likely meant, including names from other servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

# What gunicorn, uvicorn, waitress, granian, uWSGI, mod_wsgi-express and frameworks call our options. Names of one
# letter are flags.
ELSEWHERE: Final = {
    theirs: ours
    for ours, names in {
        "access_log": "accesslog access_logfile",
        "access_log_format": "access_logformat access_log_fmt",
        "bind": "host port address http http_socket uds unix_socket fd insecure_bind",
        "body_memory": "inbuf_overflow",
        "chdir": "working_dir working_directory",
        "env_file": "env_files",
        "factory": "call",
        "forwarded_fields": "trusted_proxy_headers trust_proxy_header",
        "graceful_timeout": "timeout_graceful_shutdown workers_kill_timeout",
        "group": "gid g",
        "hang_timeout": "timeout_worker_healthcheck",
        "header_bytes_limit": "max_request_header_size buffer_size h11_max_incomplete_event_size",
        "header_count_limit": "limit_request_fields",
        "header_timeout": "http1_header_read_timeout",
        "idle_timeout": "keepalive keep_alive timeout_keep_alive keep_alive_timeout channel_timeout",
        "log_level": "loglevel",
        "max_body": "max_request_body_size limit_post limit_request_body",
        "max_connections": "connection_limit max_clients",
        "max_lifetime": "workers_lifetime max_worker_lifetime",
        "max_rss": "reload_on_rss workers_max_rss",
        "max_requests": "limit_max_requests maximum_requests",
        "max_requests_jitter": "limit_max_requests_jitter",
        "overlay": "check_static document_root",
        "pidfile": "pid pid_file",
        "preload": "preload_app",
        "reload": "reload_on_changes py_autoreload",
        "request_line_limit": "limit_request_line",
        "request_timeout": "harakiri",
        "response_queue": "outbuf_high_watermark outbuf_overflow",
        "root_path": "script_name url_prefix url_path_prefix mount_point",
        "sendfile_root": "xsendfilepath x_sendfile_path x_sendfile xsendfile",
        "server_header": "ident",
        "socket_mode": "unix_socket_perms chmod_socket uds_permissions",
        "static": "url_alias static_dir static_folder static_map static_map2 static_path_mount static_path_route",
        "static_cache": "static_path_expires static_expires",
        "static_index": "static_path_dir_to_file directory_index",
        "static_listing": "directory_listing",
        "statsd": "statsd_host",
        "status": "stats",
        "threads": "blocking_threads",
        "trusted_proxies": "forwarded_allow_ips trusted_proxy trust_proxy proxy_allow_from proxy_allow_ips "
        "uwsgi_allow_from",
        "umask": "m",
        "user": "uid u",
        "workers": "processes",
    }.items()
    for theirs in names.split()
}


# How the values of some of these options differ from ours.
DIFFERENCES: Final = {
    theirs: difference
    for names, difference in {
        "host port address http http_socket": "as in 127.0.0.1:8000",
        "uds unix_socket": "as in unix:/run/app.sock",
        "fd": "as in fd://3",
        "http1_header_read_timeout": "in seconds, or with a unit: 500ms",
        "reload_on_rss workers_max_rss": "with a unit: 512MiB",
        "py_autoreload": "which takes no number",
        "static_map": "which answers 404 for files that the folder does not have",
        "static_map2": "with the folder that contains the files: /a=FOLDER/a",
        "static_path_mount static_path_route": "with path and folder: /static=FOLDER",
        "x_sendfile xsendfile": "with the folder whose files may be sent",
    }.items()
    for theirs in names.split()
}


# Options of other servers that Tailrace does not have, or whose effect differs from all of ours; and what to do
# instead.
REMEDIES: Final = {
    theirs: remedy
    for names, remedy in {
        "listen": "--bind sets the address, --backlog the length of the accept queue",
        "socket uwsgi_socket s protocol": "--bind uwsgi://127.0.0.1:3031 speaks the uwsgi protocol",
        "wsgi_file module wsgi callable callable_object": "give the application as an argument: `tailrace "
        "mysite.wsgi:application`, or `tailrace ./hello.py`",
        "pythonpath python_path app_dir pp": "--chdir changes to a directory and imports modules from it; the "
        "variable PYTHONPATH adds further directories",
        "virtualenv venv home H": "run the `tailrace` command of the virtual environment",
        "env e": "set the variable in the environment, or in the file that --env-file names",
        "c ini yaml": "--config takes a TOML file with the options, such as `tailrace config` prints",
        "check_config print_config": "`tailrace config` checks the settings and prints them",
        "paste paster ini_paste": "`pserve` reads the file; its section [server:main] needs `use = egg:tailrace`",
        "worker_class k": "requests run in threads by default; --gevent runs them in greenlets, --threads 1 one at a "
        "time",
        "worker_connections": "--max-connections limits connections; with --gevent, --max-greenlets limits the "
        "requests that run at once",
        "limit_concurrency": "--max-connections limits connections; --max-queue limits queued requests, and further "
        "requests get 503",
        "p": "--pidfile writes the process id, --workers sets the number of processes, and --bind sets the port",
        "master M": "a master process runs by default; --workers sets the number of its workers",
        "lazy_apps lazy": "each worker loads the application by default; --preload loads it before the fork",
        "enable_threads": "threads that the application starts run by default",
        "respawn_failed_workers respawn_interval": "workers that die are replaced by default",
        "cheaper": "the number of workers is fixed: --workers, and one more or less by SIGTTIN and SIGTTOU",
        "touch_reload": "SIGHUP to the master replaces the workers; for development, --reload watches the files",
        "reload_dir reload_dirs reload_include reload_exclude reload_extra_file reload_paths reload_engine "
        "reload_delay reload_ignore_dirs reload_ignore_patterns reload_ignore_paths": "--reload watches the .py and "
        ".so files of the current directory, of the application's and of packages in editable mode",
        "worker_tmp_dir": "heartbeats are in shared memory, without a file: leave it out",
        "plugin plugins single_interpreter thunder_lock strict initgroups": "Tailrace does not need it: leave it out",
        "interface": "Tailrace serves WSGI applications only: leave it out",
        "ws ws_max_size ws_ping_interval ws_ping_timeout lifespan asgi_loop asgi_lifespan": "Tailrace serves WSGI "
        "applications, which have neither WebSockets nor lifespan events",
        "loop runtime_mode runtime_threads runtime_blocking_threads task_impl": "Tailrace has one event loop, of its "
        "own; --threads limits the threads of the application",
        "backpressure": "--threads limits the requests that run at once, --max-queue those that wait",
        "http2 http_protocols http2_cleartext": "Tailrace speaks HTTP/1: a proxy in front speaks HTTP/2 with clients",
        "http1_keep_alive": "connections are kept by default; --idle-timeout limits how long",
        "strip_header_spaces permit_obsolete_folding permit_unconventional_http_method "
        "permit_unconventional_http_version casefold_http_method": "Tailrace refuses such requests, and no option "
        "accepts them",
        "forwarder_headers": "--forwarded-fields chooses the fields of trusted proxies; --root-path sets SCRIPT_NAME",
        "clear_untrusted_proxy_headers log_untrusted_proxy_headers": "the fields of proxies that are not trusted are "
        "removed by default, with a warning",
        "header headers": "the application or a proxy in front adds fields to responses",
        "die_on_term": "SIGTERM stops the server by default",
        "need_app": "the server does not start without an application",
        "vacuum": "UNIX socket files are removed by default",
        "timeout t": "--request-timeout limits the time of a request; after --hang-timeout, a worker that does not "
        "respond is replaced",
        "reuse_port": "the workers share the listening sockets of the master",
        "limit_request_field_size": "--header-bytes-limit limits the total size of a request's header fields",
        "header_map": "--underscore-headers drops, keeps or refuses header fields with an underscore in their name",
        "proxy_headers no_proxy_headers": "--trusted-proxies names the proxies whose header fields are trusted",
        "proxy_protocol": "set it as an option of the address: --bind 'http://127.0.0.1:8000?proxy=any'",
        "no_server_header": "an empty value removes the field: --server-header ''",
        "check_static_docroot": "--overlay serves the files of the folder that you name",
        "static_gzip static_gzip_all": "compressed siblings such as app.js.gz are sent by default "
        "(--static-precompressed)",
        "mimefile": "--mime .EXT=TYPE sets the type of one extension, and may be repeated",
        "no_sendfile sendfile": "Tailrace uses sendfile whenever it sends the same bytes as the file's read()",
        "expose_tracebacks": "--debug shows tracebacks in the browser",
        "certfile keyfile ssl_certfile ssl_certificate ssl_keyfile ssl_keyfile_password keyfile_password ssl_version "
        "ssl_ca_certs ssl_cert_reqs ssl_ciphers ca_certs cert_reqs ciphers https https_port": "Tailrace speaks no "
        "TLS: a proxy in front does, and --url-scheme https tells the application",
        "daemon daemonize D": "Tailrace stays in the foreground; systemd, a container or `setsid tailrace ... &` puts "
        "it into the background",
        "capture_output enable_stdio_inheritance R": "what the application prints goes to standard output and error: "
        "redirect them, as in `tailrace ... >>server.log 2>&1`",
        "log_config log_config_json logger_class": "the server's log goes to standard error, from --log-level up; the "
        "application configures its own logging",
        "log_syslog log_syslog_to log_syslog_prefix log_syslog_facility syslog": "the log goes to standard error, "
        "which systemd adds to its journal; `tailrace ... 2>&1 | logger` sends it to syslog",
        "no_access_log disable_logging": "there is no access log by default; --access-log writes one",
        "use_colors no_use_colors": "the server's log has no colours",
        "metrics metrics_address metrics_port": "--status ADDRESS answers /metrics for Prometheus",
        "statsd_prefix dogstatsd_tags": "--statsd sends names that begin with `tailrace.`: the agent can rename and "
        "tag them",
        "log_file error_logfile errorlog error_log logto": "the log goes to standard error: redirect it, as in "
        "`tailrace ... 2>>server.log`",
        "name n proc_name process_name": "`pip install 'tailrace[title]'` makes `ps` show the application",
    }.items()
    for theirs in names.split()
}


def nearest(name: str, known: Mapping[str, str], listing: str = "; `tailrace config` lists all options") -> str:
    """The end of a message about an unknown name: the option that other servers call so, or the most similar name.

    known: option names by the spellings that are possible where the unknown name was found. listing: what is said if
    there is neither.
    """
    theirs = _plain(name)
    spellings = {_plain(spelling): spelling for spelling in known}
    if theirs not in ELSEWHERE and theirs not in REMEDIES:
        # The name of another server may be misspelt, too: `--prot` is closer to `port` than to any name of ours.
        near = most_similar(theirs, [*spellings, *ELSEWHERE, *REMEDIES])
        if near in spellings:
            return f"; did you mean {spellings[near]}?"
        if near is None and (near := _continued(theirs, spellings)):
            return f"; did you mean {spellings[near]}?"
        theirs = near or theirs
    if remedy := REMEDIES.get(theirs):
        return f"; {remedy}"
    if ours := [spelling for spelling, option in known.items() if option == ELSEWHERE.get(theirs)]:
        difference = DIFFERENCES.get(theirs)
        return f"; Tailrace calls it {ours[0]}{f', {difference}' if difference else ''}"
    return listing


def similar(name: str, known: Iterable[str]) -> str | None:
    """The option that was most likely meant, among those of a command that has only its own; None: none is near."""
    spellings = {_plain(spelling): spelling for spelling in known}
    near = most_similar(_plain(name), spellings) or _continued(_plain(name), spellings)
    return spellings[near] if near else None


def _continued(beginning: str, known: Iterable[str]) -> str | None:
    """The shortest of the names that begin so, if the others begin like that one."""
    found = sorted((each for each in known if each.startswith(beginning)), key=len)
    is_clear = len(beginning) > 1 and found and all(each.startswith(found[0]) for each in found)
    return found[0] if is_clear else None


def _plain(name: str) -> str:
    plain = name.removeprefix("TAILRACE_").lstrip("-").replace("-", "_")
    return plain.lower() if len(plain) > 1 else plain


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """The first of the closest names; None: none is close enough. Up to a third of the letters may differ, but no more
    than two."""
    by_edits = [(edits(name, each), each) for each in known if min(len(name), len(each)) > 2]
    near = [(number, each) for number, each in by_edits if number <= min(2, max(len(name), len(each)) // 3)]
    return min(near, key=lambda each: each[0])[1] if near else None


def edits(one: str, other: str) -> int:
    """How many letters must be inserted, removed, replaced or swapped with the next letter to turn one into the other
    (optimal string alignment distance)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        before, last, row = row, before, [i + 1]
        for j, their in enumerate(other):
            least = min(before[j] + (letter != their), before[j + 1] + 1, row[j] + 1)
            if i and j and letter == other[j - 1] and their == one[i - 1]:
                least = min(least, last[j - 1] + 1)
            row.append(least)
    return row[-1]
