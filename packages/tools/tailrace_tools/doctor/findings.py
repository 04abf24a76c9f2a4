"""The findings: each a function of what was measured, which returns what to fix or None.

`RULES` is the table of them, the gravest first. docs/doctor.md has a section for each key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tailrace.findings.finding import (
    JOINED,
    JOINED_CODE,
    LISTED,
    MANY,
    PAUSE,
    PAUSED,
    RAISED,
    RAISED_CODE,
    SLOW,
    SMALL,
    WHOLE,
    WORTH_A_WRAPPER,
    WRAPPED,
    WRAPPED_CODE,
    Finding,
    before_first_block,
    counted,
    time_of,
)
from tailrace_tools.doctor.measured import (
    BYTES,
    FILE,
    GENERATOR,
    ITERABLE,
    NOTHING,
    TEXT,
    WRAPPER,
    Measured,
)

# Compression is worth its time if it saves this part of the body, and so many bytes.
SAVED: Final = 0.25
SAVED_BYTES: Final = 1024
# A framework does more work for a file than for a ready body. With Flask, `send_file` takes 0.06 ms longer for 64 KiB,
# the same time for 1 MiB, and less for larger files.
WORTH_A_WRAPPER_OF_A_FRAMEWORK: Final = 1 << 20


@dataclass(frozen=True)
class Rule:
    """One finding. unless: keys of findings that say the same better."""

    key: str
    find: Callable[[str, Measured], Finding | None]
    unless: tuple[str, ...] = ()


def findings(measured: Measured) -> list[Finding]:
    """All that is true of this response, in the order of the table."""
    found: dict[str, Finding] = {}
    for rule in RULES:
        if not any(key in found for key in rule.unless) and (one := rule.find(rule.key, measured)) is not None:
            found[rule.key] = one
    return list(found.values())


def hints(measured: Measured) -> list[Finding]:
    """What is true, too, and is no mistake in the delivery: time that passes before there is anything to deliver."""
    delivery = measured.delivery
    if delivery is None or measured.failures or measured.response.is_cut or measured.waits_for_events:
        return []
    ms = max(delivery.called, delivery.first_block)
    return [before_first_block(ms, measured.application)] if ms >= SLOW else []


def _more(measured: Measured) -> str:
    """What the delivery costs beyond the floor."""
    delivery, floor = measured.delivery, measured.floor
    if delivery is None or floor is None:
        return ""
    return (
        f"After the first block, the thread was occupied for {time_of(delivery.handing)}, and "
        f"{counted(delivery.writes, 'system call')} sent the response. The same bytes as one list: "
        f"{time_of(floor.handing)}, {counted(floor.writes, 'system call')}."
    )


def _more_than_file(measured: Measured) -> str:
    """What the delivery costs beyond that of a file wrapper."""
    delivery, filed = measured.delivery, measured.as_file
    if delivery is None or filed is None:
        return ""
    return (
        f"The application had the request for {time_of(delivery.application)}, and "
        f"{counted(delivery.writes, 'system call')} sent the response, including all its other work. For an "
        "application that only returns wsgi.file_wrapper: "
        f"{time_of(filed.application)}, {counted(filed.writes, 'system call')}. The difference is the most that can be "
        "saved."
    )


def _file_cost(measured: Measured) -> tuple[float, int]:
    """Milliseconds and system calls that a file wrapper would save."""
    delivery, filed = measured.delivery, measured.as_file
    if delivery is None or filed is None:
        return 0.0, 0
    return max(0.0, delivery.application - filed.application), max(0, delivery.writes - filed.writes)


def _framework(measured: Measured) -> str:
    """`django`, `flask`, or neither."""
    names = [layer.name.partition(".")[0] for layer in measured.layers]
    return next((name for name in ("django", "flask") if name in names), "")


def joined_code(measured: Measured) -> str:
    """How all blocks are returned as one."""
    return JOINED_CODE[_framework(measured)]


def exception(key: str, measured: Measured) -> Finding | None:
    """The application raised, or returned no response."""
    status = f"The client got {measured.response.status} {measured.response.reason}"
    broken = measured.delivery is not None and measured.delivery.ending == "broken"
    status += ", and a truncated body." if broken else "."
    for failure in measured.failures:
        if failure.when == "close":
            continue
        where = "when it was called" if failure.when == "call" else "in its iterable"
        at = f" at {failure.place}" if failure.place else ""
        return Finding(
            key,
            f"The application raised {failure.type} {where}{at}: {failure.message or 'without a message'}",
            f"{status} Nothing else was measured.",
            RAISED.change,
            RAISED_CODE[_framework(measured)],
        )
    if measured.shape == NOTHING and measured.is_asked:
        return Finding(
            key,
            f"The application returned {measured.returned.name}, which is not iterable.",
            status,
            "Return a list of bytes. A `return` may be missing.",
            "return [body]",
        )
    if measured.is_asked and not measured.has_responded:
        return Finding(
            key,
            "The application returned without calling start_response().",
            status,
            "Call it before the first block.",
            'start_response("200 OK", [("Content-Type", "text/plain")])\nreturn [body]',
        )
    return None


def text(key: str, measured: Measured) -> Finding | None:
    """Blocks that are not bytes."""
    others = ["str"] if measured.shape == TEXT else measured.known.others if measured.known else []
    if not others:
        return None
    what = "str itself" if measured.shape == TEXT else f"blocks of type {', '.join(others)}"
    response = measured.response
    return Finding(
        key,
        f"The application returned {what}; blocks must be bytes (PEP 3333).",
        f"The client got {response.status} {response.reason} and {counted(response.body_bytes, 'byte')} of a body.",
        "Encode the text, and return it in a list.",
        'return [text.encode("utf-8")]',
    )


def length(key: str, measured: Measured) -> Finding | None:
    """A Content-Length that is not the length of the body."""
    declared, delivery = measured.declared, measured.delivery
    if declared is None or delivery is None or not measured.has_body:
        return None
    given = measured.given
    if given is None and delivery.ending == "broken" and delivery.bytes < declared:
        given = delivery.bytes
    # The server may send more than it was given: a file that the application names.
    if given is None or given == declared or given < declared <= delivery.bytes:
        return None
    if given < declared:
        cost = (
            f"The client waits for {counted(declared - given, 'byte')} that never arrive; the server aborts "
            "the connection, so that the client can tell."
        )
    else:
        cost = f"The client does not get the last {counted(given - declared, 'byte')}."
    return Finding(
        key,
        f"Content-Length is {declared:,}, but the application returned {counted(given, 'byte')}.",
        cost,
        "Use the length of the bytes that are sent, not of the text; or omit the field: the server adds it for a list.",
        'body = text.encode("utf-8")\nfields.append(("Content-Length", str(len(body))))\nreturn [body]',
    )


def close_failed(key: str, measured: Measured) -> Finding | None:
    """`close()` raised."""
    for failure in measured.failures:
        if failure.when == "close":
            at = f" at {failure.place}" if failure.place else ""
            return Finding(
                key,
                f"close() of what the application returned raised {failure.type}{at}: "
                f"{failure.message or 'without a message'}",
                "The client has its response and does not notice. Whatever close() should have released may still be "
                "open: a database connection, a file.",
                "Release each resource, even if releasing another one fails.",
                "def close(self):\n    with contextlib.ExitStack() as stack:\n"
                "        stack.callback(self.file.close)\n        stack.callback(self.cursor.close)",
            )
    return None


def close_missing(key: str, measured: Measured) -> Finding | None:
    """An iterable that must be closed, and was not."""
    if not measured.unclosed or measured.response.is_cut:
        return None
    by, name = measured.unclosed[0]
    outer = measured.layers[0] if measured.layers and measured.layers[0] != by else None
    who = f"what is around it ({outer})" if outer else "what is around it"
    rest = f" So were {len(measured.unclosed) - 1} more." if len(measured.unclosed) > 1 else ""
    return Finding(
        key,
        f"close() of {name}, which {by} returned, was not called: {who} does not pass it on.{rest}",
        "What it should release stays open until it is garbage-collected: files, connections, locks. Frameworks also "
        "end the request there (Django returns its database connections).",
        "In the middleware, close the iterable that the application returned.",
        "class Blocks:\n    def close(self):\n        close = getattr(self.blocks, 'close', None)\n"
        "        if close is not None:\n            close()",
    )


def wrapper_spoilt(key: str, measured: Measured) -> Finding | None:
    """A file wrapper that the server did not get."""
    spoilt = measured.spoilt
    if spoilt is None or measured.failures:
        return None
    made = f" that {spoilt.made_by} made" if spoilt.made_by.name else ""
    return Finding(
        key,
        f"The file wrapper{made} does not reach the server: {spoilt.by} iterates over it and returns something else.",
        f"The file passes through Python. {_more_than_file(measured)}",
        "Make the middleware return a file wrapper unchanged.",
        "body = self.application(environ, start_response)\n"
        'if isinstance(body, environ["wsgi.file_wrapper"]):\n    return body',
        *_file_cost(measured),
    )


def _served_instead(measured: Measured) -> str:
    """How the server could send the file itself."""
    file = measured.file or ""
    url = measured.request.target.partition("?")[0].split("/")
    path = file.split("/")
    same = 0
    while same < min(len(url), len(path)) - 1 and url[-1 - same] == path[-1 - same]:
        same += 1
    wrapper = WRAPPED_CODE[_framework(measured)]
    if not same or not url[-1]:
        return wrapper
    # A folder as deep as possible: all that is in it becomes public.
    same = max(1, min(same, len(url) - 2))
    folder = "/".join(path[:-same]) or "/"
    folder = os.path.relpath(folder) if folder.startswith(os.getcwd()) else folder
    prefix = "/".join(url[:-same])
    option = f"--static {prefix}={folder}" if prefix else f"--overlay {folder}"
    return f"{wrapper}\n# or, if the file is public:\ntailrace {measured.application} \\\n    {option}"


def lines_of_file(key: str, measured: Measured) -> Finding | None:
    """A file whose lines are the blocks."""
    known = measured.known
    if measured.file is None or known is None or known.count < MANY or known.lines < known.count - 1:
        return None
    return Finding(
        key,
        f"The blocks are the lines of {_short(measured.file)}: {counted(known.count, 'block')} of "
        f"{known.mean:,.0f} bytes on average.",
        f"Each line costs a step in Python. {_more_than_file(measured)}",
        WRAPPED.change,
        _served_instead(measured),
        *_file_cost(measured),
    )


def file_through_python(key: str, measured: Measured) -> Finding | None:
    """A file that was read by the application, byte for byte."""
    if measured.file is None or measured.shape in (FILE, WRAPPER) or measured.delivery is None:
        return None
    least = WORTH_A_WRAPPER_OF_A_FRAMEWORK if _framework(measured) else WORTH_A_WRAPPER
    if measured.delivery.path == "sendfile" or measured.response.body_bytes < least:
        return None
    return Finding(
        key,
        f"The body is the file {_short(measured.file)}, {counted(measured.response.body_bytes, 'byte')}, which the "
        "application has read.",
        f"All of it passes through Python. {_more_than_file(measured)}",
        WRAPPED.change,
        _served_instead(measured),
        *_file_cost(measured),
    )


def bare_bytes(key: str, measured: Measured) -> Finding | None:
    """Bytes that are not in a list."""
    if measured.shape != BYTES:
        return None
    size = measured.response.body_bytes
    return Finding(
        key,
        f"The application returned {measured.returned.name} and not a list of bytes.",
        "Here this costs nothing: the bytes were sent as one block. By PEP 3333, a server iterates over them, which "
        f"gives {counted(size, 'number')}; other servers send {counted(size, 'block')} or fail.",
        "Return the bytes in a list.",
        "return [body]",
    )


def write_used(key: str, measured: Measured) -> Finding | None:
    """`write()` was called."""
    if not measured.written:
        return None
    return Finding(
        key,
        f"The application called write() {counted(len(measured.written), 'time')}, with "
        f"{counted(sum(measured.written), 'byte')}.",
        "write() must send the data before it returns, so the length is unknown and the application waits for slow "
        "clients. " + _more(measured),
        "Collect the blocks and return them.",
        "blocks = []\nblocks.append(block)  # instead of write(block)\nreturn blocks",
        measured.more_time,
        measured.more_calls,
    )


def small_blocks(key: str, measured: Measured) -> Finding | None:
    """Many small blocks that come quickly; those of a list cost little, those that come slowly belong to a stream."""
    known = measured.known
    if known is None or not known.is_timed or measured.waits_for_events:
        return None
    if known.quick < MANY or known.quick_bytes / known.quick >= SMALL:
        return None
    path = measured.delivery.path if measured.delivery else "none"
    where = " The server coalesced them." if path == "coalesced" else ""
    return Finding(
        key,
        f"{counted(known.count, 'block')} of {known.mean:,.0f} bytes on average, from {measured.producer}.",
        f"Each block costs a step in Python.{where} {_more(measured)}",
        JOINED.change,
        joined_code(measured),
        measured.more_time,
        measured.more_calls,
    )


def starving(key: str, measured: Measured) -> Finding | None:
    """A pause between two blocks, during which a thread is held."""
    known, delivery = measured.known, measured.delivery
    # An event stream waits for its events.
    if known is None or delivery is None or known.longest_gap < PAUSE or measured.waits_for_events:
        return None
    # A pause of the machine's is not there each time.
    if not measured.response.is_cut and delivery.handing < 0.8 * known.longest_gap:
        return None
    return Finding(
        key,
        f"{measured.producer} paused for {time_of(known.longest_gap)} after {counted(known.after, 'block')}.",
        f"This response occupied a thread of the server for {time_of(delivery.handing)}, mostly waiting; with "
        "--threads 128, 128 such clients occupy all threads.",
        PAUSED.change,
        PAUSED.code.format(application=measured.application),
        delivery.handing,
    )


def no_length(key: str, measured: Measured) -> Finding | None:
    """A short body that came at once and was sent without its length."""
    response, known = measured.response, measured.known
    if (
        not measured.has_body
        or measured.waits_for_events
        or response.is_cut
        or measured.shape not in (GENERATOR, ITERABLE)
        or response.header("Content-Length") is not None
        # Compressed while it is made.
        or response.header("Content-Encoding") is not None
        or known is None
        or not 0 < known.bytes <= WHOLE
        or known.longest_gap >= PAUSE
    ):
        return None
    return Finding(
        key,
        f"The length of {counted(response.body_bytes, 'byte')} was unknown when the head was sent, since "
        f"{measured.producer} yields the blocks one by one.",
        f"They were sent in chunks: {counted(response.framing_bytes, 'byte')} of framing, and clients cannot show "
        f"progress. {_more(measured)}",
        LISTED.change,
        joined_code(measured),
        measured.more_time,
        measured.more_calls,
    )


def uncompressed(key: str, measured: Measured) -> Finding | None:
    """A body that gzip would make smaller, for a client that takes gzip."""
    response, gzip = measured.response, measured.compressed
    if gzip is None or not measured.has_body or response.status == 206 or measured.waits_for_events:
        return None
    if "gzip" not in (measured.request.header("Accept-Encoding") or "").lower():
        return None
    if "no-transform" in (response.header("Cache-Control") or "").lower():
        return None
    saved = gzip.of - gzip.into
    if saved < SAVED_BYTES or saved < SAVED * gzip.of:
        return None
    part = "" if gzip.of == response.body_bytes else f" (its first {counted(gzip.of, 'byte')})"
    kind = response.header("Content-Type") or ""
    name = kind.partition(";")[0].strip().lower()
    is_common = name.startswith("text/") or name.endswith(("json", "xml", "javascript"))
    static = measured.file is not None or (measured.delivery is not None and measured.delivery.path == "sendfile")
    if static:
        code = "gzip -9k FILE  # --static sends FILE.gz to clients that accept it\n# or: --compress"
    else:
        code = f"tailrace {measured.application} --compress"
        if not name:
            code = 'fields.append(("Content-Type", TYPE))\n' + f"# {code}"
        elif not is_common:
            code += f" --compress-types {name}"
    return Finding(
        key,
        f"{kind or 'A body without a Content-Type'} was sent uncompressed to a client that accepts gzip.",
        f"gzip shrinks {counted(gzip.of, 'byte')}{part} by {100 * saved // gzip.of}%, to {gzip.into:,} bytes, in "
        f"{time_of(gzip.ms)} of processor time. Without compression, the client waits for {counted(saved, 'byte')} "
        "more.",
        "Let the server or the proxy compress it, outside the application's threads. If the content never changes, "
        "compress it once and keep the result. Do not compress pages that contain a secret together with text supplied "
        "by the client (BREACH).",
        code,
        0.0,
    )


def _short(file: str) -> str:
    here = os.getcwd() + os.sep
    return os.path.relpath(file) if file.startswith(here) else file


RULES: Final = (
    Rule("exception", exception),
    Rule("not-bytes", text, unless=("exception",)),
    Rule("wrong-length", length, unless=("exception", "not-bytes")),
    Rule("close-failed", close_failed),
    Rule("close-missing", close_missing, unless=("exception",)),
    Rule("wrapper-spoilt", wrapper_spoilt),
    Rule("lines-of-file", lines_of_file, unless=("wrapper-spoilt",)),
    Rule("file-through-python", file_through_python, unless=("wrapper-spoilt", "lines-of-file")),
    Rule("bare-bytes", bare_bytes),
    Rule("write-used", write_used),
    Rule("small-blocks", small_blocks, unless=("lines-of-file",)),
    Rule("starving", starving),
    Rule("no-length", no_length, unless=("lines-of-file", "file-through-python", "small-blocks", "wrapper-spoilt")),
    Rule("uncompressed", uncompressed, unless=("exception", "not-bytes")),
)
