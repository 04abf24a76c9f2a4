"""Writes docs/migrate.md from the table of other servers' options; `--check` only says whether it is up to date.

python tools/migrate_page.py [--check]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tailrace.cli.options import BY_NAME
from tailrace.foreign.rows import Effect, Name, Row, Server
from tailrace.foreign.table import TABLE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "migrate.md"

HEAD = """\
# Coming from gunicorn, uWSGI and other servers

Made from the table in `tailrace/foreign/table.py` by `tools/migrate_page.py`; change it there.

`tailrace migrate` reads the configuration of another server and prints a `tailrace.toml`:

```console
$ tailrace migrate gunicorn.conf.py > tailrace.toml
$ tailrace migrate /etc/uwsgi/mysite.ini
$ tailrace migrate uwsgi.ini:production
$ tailrace migrate Procfile
$ tailrace migrate 'WEB_CONCURRENCY=4 exec gunicorn -k gthread --threads 8 mysite.wsgi'
$ tailrace config          # checks the result
```

It executes nothing. `gunicorn.conf.py` is read as a syntax tree, and files of uWSGI (`.ini`, `.yaml`, `.json`, `.xml`)
as text, with their placeholders and includes. Each setting has a comment that says which line it comes from. Values
that are computed are named with their source text, and get a suggestion where one is known. At the end, comments list
options without an equivalent, with the reason, and options that are not needed. What you should look at is also on
standard error. Values of environment variables are not copied, since they may be secrets.

Look at three settings in particular:

- **threads.** A worker of gunicorn (`sync`) or uWSGI without threads serves one request at a time, so the result has
  `threads = 1`. If your application is thread-safe, as Django and Flask are, remove the line: Tailrace starts threads
  on demand, and needs fewer workers.
- **trusted_proxies.** Other servers pass `X-Forwarded-*` fields of any peer to the application. Tailrace removes them
  unless the peer is trusted. The result trusts this machine; add the address of a proxy that is elsewhere.
- **request_timeout.** gunicorn's `timeout` ends a worker of the class `sync` and its request. Here the client gets 504,
  `tailrace.RequestTimeout` is raised in the thread, and the worker stays. For other classes, `timeout` becomes
  `hang_timeout`.

If you give one of these options to `tailrace serve`, the error says the same as the table.
"""


def page() -> str:
    """The text of the page."""
    return HEAD + "".join(section(server) for server in Server if server is not Server.OTHER)


def section(server: Server) -> str:
    """The tables of one server."""
    parts = [f"\n## {server.value}\n"]
    for effect, heading in (
        (Effect.OPTION, "Tailrace"),
        (Effect.ELSEWHERE, "no such option: do this instead"),
        (Effect.NEEDLESS, "not needed: leave it out"),
    ):
        rows = [row for row in TABLE if row.effect is effect and server in row.names]
        parts.append(f"\n| {server.value} | {heading} |\n|---|---|\n")
        parts += [f"| {', '.join(map(shown, row.names[server]))} | {meaning(row)} |\n" for row in rows]
    return "".join(parts)


def shown(name: Name) -> str:
    """A foreign option: its spellings, and its name elsewhere if it differs."""
    parts = [f"`{flag}`" for flag in name.flags] or [f"`{each}`" for each in name.settings] or [f"`${name.variable}`"]
    other = [each for each in name.settings if name.flags and f"--{each.replace('_', '-')}" not in name.flags]
    parts += [f"`{each}`" for each in other if f"--{each}" not in name.flags]
    return "/".join(parts)


def meaning(row: Row) -> str:
    """What the row says, with options as code."""
    if row.effect is Effect.OPTION and not row.is_sentence:
        return f"`{row.ours}`" + (f", {row.says}" if row.says else "")
    option = BY_NAME.get(row.ours)
    sentence = row.sentence.replace("{ours}", option.flag if option is not None else "")
    # What is quoted already stays.
    parts = sentence.replace("|", "\\|").split("`")
    parts[::2] = [re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", part) for part in parts[::2]]
    return "`".join(parts)


def main() -> int:
    """Writes or checks."""
    fresh = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(fresh)
        return 0
    if PAGE.is_file() and PAGE.read_text() == fresh:
        return 0
    print(
        "docs/migrate.md does not follow tailrace/foreign/table.py; run `.venv/bin/python tools/migrate_page.py`",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
