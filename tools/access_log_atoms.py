"""What the atoms of --access-log-format give, for docs/options.md."""

from __future__ import annotations

from typing import Final

# What `{name:NAME}` gives in --access-log-format; other names are those of `_tailrace.ATOMS`.
FIELDS: Final = {
    "request:NAME": "a request header, such as `{request:x-request-id}`",
    "response:NAME": "a response header, such as `{response:content-type}`",
    "environ:NAME": (
        "an `environ` value as the application leaves it, such as `{environ:REMOTE_USER}`: a string, bytes or a "
        "number, up to 4 KiB; `-` for anything else"
    ),
}

# What the atoms of gunicorn give, in a format that has `%(name)s` and none of the names above.
LETTERS: Final = {
    "%(h)s": "client address",
    "%(l)s": "`-`",
    "%(u)s": "user of `Authorization: Basic`",
    "%(t)s": "time when the response ended, as `[22/Nov/2026:01:02:03 +0000]`",
    "%(r)s": "method, target and version",
    "%(m)s": "request method",
    "%(U)s": "the target's path, still percent-encoded",
    "%(q)s": "the target's query, without the question mark",
    "%(H)s": "`HTTP/1.1` or `HTTP/1.0`",
    "%(s)s": "status code",
    "%(B)s": "body bytes sent",
    "%(b)s": "the same as `%(B)s`",
    "%(f)s": "`Referer` header",
    "%(a)s": "`User-Agent` header",
    "%(T)s": "time from the complete request to the end of the response, in whole seconds",
    "%(M)s": "the same time in whole milliseconds",
    "%(D)s": "the same time in whole microseconds",
    "%(L)s": "the same time in seconds, with six decimals",
    "%(p)s": "process ID, as `<7>`",
    "%({NAME}i)s": "a request header",
    "%({NAME}o)s": "a response header",
    "%({NAME}e)s": "an `environ` value, like `{environ:NAME}`",
}
