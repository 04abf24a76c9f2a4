"""Unknown option names: which option was most likely meant, also by a name of another server."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

# What gunicorn, uvicorn, waitress, granian, uWSGI, mod_wsgi-express and frameworks call our options. Names of one
# letter are flags.
ELSEWHERE: Final = {
    theirs: ours
    for ours, names in {
        "access_log": "accesslog access_logfile",
        "access_log_format": "access_logformat",
        "bind": "host port listen address http http_socket uds fd unix_socket",
        "chdir": "pythonpath app_dir directory",
        "env_file": "env e",
        "gevent": "worker_class k",
        "graceful_timeout": "timeout_graceful_shutdown",
        "group": "gid g",
        "header_bytes_limit": "limit_request_field_size max_request_header_size",
        "header_count_limit": "limit_request_fields",
        "idle_timeout": "keepalive keep_alive timeout_keep_alive",
        "log_level": "loglevel",
        "mime": "mimefile",
        "max_body": "max_request_body_size limit_post",
        "max_connections": "connection_limit limit_concurrency",
        "max_greenlets": "worker_connections",
        "max_requests": "limit_max_requests",
        "overlay": "check_static check_static_docroot document_root",
        "pidfile": "pid p",
        "preload": "preload_app",
        "request_line_limit": "limit_request_line",
        "request_timeout": "timeout t harakiri",
        "root_path": "script_name url_prefix",
        "sendfile_root": "x_sendfile xsendfile xsendfilepath x_sendfile_path",
        "server_header": "ident",
        "socket_mode": "unix_socket_perms chmod_socket",
        "static": "static_map static_map2 static_path_mount static_path_route url_alias static_dir static_folder",
        "static_cache": "static_path_expires static_expires",
        "static_index": "static_path_dir_to_file directory_index",
        "static_listing": "directory_listing",
        "static_precompressed": "static_gzip static_gzip_all",
        "umask": "m",
        "user": "uid u",
        "workers": "processes",
    }.items()
    for theirs in names.split()
}


# Options of theirs that Tailrace does not have, and what to do instead.
NOWHERE: Final = {
    theirs: remedy
    for names, remedy in {
        "certfile keyfile ssl_certfile ssl_keyfile": "Tailrace speaks no TLS: a proxy in front does, and --url-scheme "
        "https tells the application",
        "daemon daemonize D": "Tailrace stays in the foreground; systemd, a container or `setsid tailrace ... &` puts "
        "it into the background",
        "log_file error_logfile errorlog logto": "the log goes to standard error: redirect it, as in `tailrace ... "
        "2>>server.log`",
        "name n proc_name": "`pip install 'tailrace[title]'` makes `ps` show the application",
        "c": "--config takes a TOML file with the options, such as `tailrace config` prints",
    }.items()
    for theirs in names.split()
}


def nearest(name: str, known: Mapping[str, str]) -> str:
    """The end of a message about an unknown name: the option that other servers call so, or the most similar name.

    known: option names by the spellings that are possible where the unknown name was found.
    """
    theirs = name.removeprefix("TAILRACE_").lstrip("-").replace("-", "_")
    theirs = theirs.lower() if len(theirs) > 1 else theirs
    found = difflib.get_close_matches(name, list(known), n=1)
    # A misspelt name of theirs: `--prot` is more similar to `port` than to any of ours.
    slips = difflib.get_close_matches(theirs, [*ELSEWHERE, *NOWHERE], n=1) if len(theirs) > 2 else []
    if slips and not (found and _likeness(name, found[0]) >= _likeness(theirs, slips[0])):
        theirs = slips[0]
    if remedy := NOWHERE.get(theirs):
        return f"; {remedy}"
    if ours := [spelling for spelling, option in known.items() if option == ELSEWHERE.get(theirs)]:
        return f"; Tailrace calls it {ours[0]}"
    return f"; did you mean {found[0]}?" if found else "; `tailrace config` lists all options"


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lstrip("-"), other.lstrip("-")).ratio()
