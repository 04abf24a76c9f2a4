"""Every shape in which a WSGI application can return a response, each delivering a real file.

    tailrace examples/seeds.py

It is a plain WSGI application: run it under any server and compare. The files are made at start, the same on every
machine. Its page links every shape; where the server tells (`environ["tailrace.delivery"]`), it shows beside each link
how the last response of this process was delivered. /records gives the same as JSON.
"""

from __future__ import annotations

import html
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

Environ = dict[str, Any]
Start = Callable[..., Any]
Body = Iterable[bytes]
Record = dict[str, Any]

DECK_BYTES = 688_128
WORDS_BYTES = 2_493_109
PAGE_BYTES = 21_324


def make_deck() -> bytes:
    """What a presentation is to a server: bytes that do not compress, behind the signature of an OLE file."""
    return bytes.fromhex("d0cf11e0a1b11ae1") + random.Random("deck").randbytes(DECK_BYTES - 8)


def make_words() -> bytes:
    """A word list, one to a line."""
    chance = random.Random("words")
    syllables = [onset + vowel for onset in [*"bcdfghklmnprstvw", "st", "tr", "pl", "gr"] for vowel in "aeiou"]
    lines: list[str] = []
    total = 0
    while total < WORDS_BYTES:
        lines.append("".join(chance.choices(syllables, k=chance.randint(2, 5))) + "\n")
        total += len(lines[-1])
    return "".join(lines).encode()[: WORDS_BYTES - 1] + b"\n"


def make_page(words: bytes) -> bytes:
    """An HTML page of an ordinary length."""
    head = b"<!doctype html><meta charset=utf-8><title>A page</title><h1>A page</h1>\n"
    tail = b"\n<p>The end.\n"
    text = b"<p>" + words.replace(b"\n", b" ")
    return head + text[: PAGE_BYTES - len(head) - len(tail)] + tail


def store(name: str, content: bytes) -> Path:
    """Writes a file for the shapes that deliver files; the same path at each start, replaced in one step."""
    directory = Path(tempfile.gettempdir()) / f"tailrace-seeds-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / name
    fresh = directory / f".{name}.{os.getpid()}"
    fresh.write_bytes(content)
    fresh.replace(path)
    return path


DECK = make_deck()
WORDS = make_words()
PAGE = make_page(WORDS)
DECK_PATH = store("deck.ppt", DECK)
WORDS_PATH = store("words.txt", WORDS)


class Shape(NamedTuple):
    """One row of the index."""

    path: str
    title: str
    detail: str
    respond: Callable[[Environ, Start], Body]


SHAPES: list[Shape] = []
Respond = Callable[[Environ, Start], Body]


def shape(path: str, title: str, detail: str) -> Callable[[Respond], Respond]:
    """Lists a function under its path."""

    def enter(respond: Respond) -> Respond:
        SHAPES.append(Shape(path, title, detail, respond))
        return respond

    return enter


def deck_headers(*more: tuple[str, str]) -> list[tuple[str, str]]:
    """The header of a deck."""
    return [
        ("Content-Type", "application/vnd.ms-powerpoint"),
        ("Content-Disposition", 'inline; filename="deck.ppt"'),
        *more,
    ]


@shape("/pong", "Pong", "Four bytes behind 15 header fields: what most of an API's answers look like.")
def pong(environ: Environ, start_response: Start) -> Body:
    """A small answer with the fields of a large application."""
    start_response(
        "200 OK",
        [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", "4"),
            ("Cache-Control", "no-store"),
            ("Vary", "Accept, Cookie"),
            ("ETag", '"2f-5e9b"'),
            ("Last-Modified", "Sat, 01 Aug 2026 12:00:00 GMT"),
            ("Content-Language", "en"),
            ("X-Request-Id", "01985f1e-7a3c-7c11-9d0e-6d2f0f6b8a11"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Content-Security-Policy", "default-src 'self'"),
            ("Permissions-Policy", "geolocation=()"),
            ("Set-Cookie", "seen=1; Path=/; HttpOnly; SameSite=Lax"),
        ],
    )
    return [b"pong"]


@shape("/page", "A page", f"{PAGE_BYTES:,} bytes of HTML in a list.")
def page(environ: Environ, start_response: Start) -> Body:
    """A page as a template engine returns it."""
    start_response("200 OK", [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(PAGE)))])
    return [PAGE]


@shape("/deck/list", "The deck as a list", f"{DECK_BYTES:,} bytes in one block.")
def deck_list(environ: Environ, start_response: Start) -> Body:
    """All of it, in the shape the standard has in mind."""
    start_response("200 OK", deck_headers(("Content-Length", str(len(DECK)))))
    return [DECK]


@shape(
    "/deck/bytes",
    "The deck as bare bytes",
    "The brackets were forgotten, and iterating bytes gives numbers. Some servers send 688,128 blocks, others fail.",
)
def deck_bytes(environ: Environ, start_response: Start) -> Body:
    """A common mistake, kept on purpose."""
    start_response("200 OK", deck_headers(("Content-Length", str(len(DECK)))))
    return DECK  # type: ignore[return-value]


@shape("/deck/file", "The deck as a file object", "The open file is the iterable; its lines are the blocks.")
def deck_file(environ: Environ, start_response: Start) -> Body:
    """A file object is an iterable of its lines."""
    start_response("200 OK", deck_headers(("Content-Length", str(len(DECK)))))
    return DECK_PATH.open("rb")


@shape("/deck/wrapper", "The deck through wsgi.file_wrapper", "The way PEP 3333 offers a file to the server.")
def deck_wrapper(environ: Environ, start_response: Start) -> Body:
    """The server may send the file without reading it."""
    start_response("200 OK", deck_headers(("Content-Length", str(len(DECK)))))
    file = DECK_PATH.open("rb")
    if "wsgi.file_wrapper" in environ:
        wrapped: Body = environ["wsgi.file_wrapper"](file, 65536)
        return wrapped
    return blocks_of_file(file, 65536)


@shape("/deck/byte-by-byte", "The deck, byte by byte", f"{DECK_BYTES:,} blocks of one byte.")
def deck_byte_by_byte(environ: Environ, start_response: Start) -> Iterator[bytes]:
    """The worst that an application can do."""
    start_response("200 OK", deck_headers(("Content-Length", str(len(DECK)))))
    for index in range(len(DECK)):
        yield DECK[index : index + 1]


@shape("/words", "A word list in small blocks", f"{WORDS_BYTES:,} bytes, 128 at a time, and no Content-Length.")
def words(environ: Environ, start_response: Start) -> Iterator[bytes]:
    """What an export that yields row after row looks like."""
    start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
    for index in range(0, len(WORDS), 128):
        yield WORDS[index : index + 128]


@shape("/slow", "Hello, a pause, World", "The first word must arrive before the pause of 0.1 s ends.")
def slow(environ: Environ, start_response: Start) -> Iterator[bytes]:
    """A generator that waits between two blocks."""
    start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
    yield b"Hello"
    time.sleep(0.1)
    yield b"World"


@shape("/echo", "Echo", "Sends a request body back, read and returned in blocks of 64 KiB. Try it with POST.")
def echo(environ: Environ, start_response: Start) -> Body:
    """The body of the request is the body of the response."""
    start_response("200 OK", [("Content-Type", environ.get("CONTENT_TYPE") or "application/octet-stream")])
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if not length and not environ.get("wsgi.input_terminated"):
        return []
    return blocks_of_input(environ["wsgi.input"], None if environ.get("wsgi.input_terminated") else length)


def blocks_of_file(file: Any, size: int) -> Iterator[bytes]:
    """A file in blocks, closed at the end."""
    with file:
        while block := file.read(size):
            yield block


def blocks_of_input(stream: Any, length: int | None) -> Iterator[bytes]:
    """A request body in blocks; `length` where the server's stream does not end by itself."""
    left = length
    while (left is None or left > 0) and (block := stream.read(65536 if left is None else min(65536, left))):
        if left is not None:
            left -= len(block)
        yield block


# By path, what the last request was given to ask about its delivery; asked later, it tells how it went on. Storing
# one item of a dict is atomic, so threads need no lock; and nothing is wrapped, so a list stays a list to the server.
LAST: dict[str, Callable[[], Record]] = {}


def app(environ: Environ, start_response: Start) -> Body:
    """The WSGI application."""
    path = environ.get("PATH_INFO") or "/"
    if path == "/":
        return index(environ, start_response)
    if path == "/records":
        return records(environ, start_response)
    found = next((each for each in SHAPES if each.path == path), None)
    if found is not None:
        if "tailrace.delivery" in environ:
            LAST[path] = environ["tailrace.delivery"]
        return found.respond(environ, start_response)
    start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", "14")])
    return [b"No such shape\n"]


def answer(start_response: Start, content_type: str, text: str) -> Body:
    """What changes with every request."""
    body = text.encode()
    headers = [("Content-Type", content_type), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
    start_response("200 OK", headers)
    return [body]


def last_record(path: str) -> Record | None:
    """How the last response of a shape was delivered; None if there was none, or if the server does not tell."""
    ask = LAST.get(path)
    return None if ask is None else ask()


def records(environ: Environ, start_response: Start) -> Body:
    """The record of each shape's last response, null where there is none."""
    told = {"told": "tailrace.delivery" in environ, "records": {each.path: last_record(each.path) for each in SHAPES}}
    return answer(start_response, "application/json", json.dumps(told, indent=1) + "\n")


def milliseconds(value: float | None) -> str:
    """A time with as many places as say something."""
    return "\N{EN DASH}" if value is None else f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f} ms"


def figures(record: Record) -> dict[str, str]:
    """A record in words. The time in the application is told when it is over: until then it only grows."""
    return {
        "Application": milliseconds(None if record["ending"] == "open" else record["app_ms"]),
        "First block": milliseconds(record["first_block_ms"]),
        "Last byte": milliseconds(record["drained_ms"]),
        "Blocks": f"{record['blocks']:,}",
        "Bytes": f"{record['bytes']:,}",
        "Writes": f"{record['writes']:,}",
        "Delivery": record["delivery"],
        "Ending": record["ending"].replace("-", " "),
    }


def row(root: str, each: Shape) -> str:
    """A shape, and how its last response was delivered; nothing as long as it was not asked for."""
    record = last_record(each.path)
    if record:
        pairs = "".join(f"<div><dt>{name}<dd>{html.escape(text)}</div>" for name, text in figures(record).items())
        told = f'<dl class="told {html.escape(record["ending"])}">{pairs}</dl>'
    else:
        told = f'<p class="told">{"" if record is None else "On its way."}</p>'
    return (
        f'<li><a href="{root}{each.path}">{html.escape(each.title)}</a><code>{each.path}</code>'
        f'<button type="button" hidden aria-label="Try {html.escape(each.title)}">Try</button>'
        f"<p>{html.escape(each.detail)}</p>{told}<output></output></li>\n"
    )


LEGEND = {
    "Application": "how long it had the request: from its call until its last block was taken",
    "First block": "how long until its first byte",
    "Last byte": "how long until the kernel had all of it",
    "Blocks": "how many pieces it made of so many bytes",
    "Writes": "system calls that took, whichever thread made them",
    "Delivery": "one-write: head and body together; direct: each block as it came; coalesced: quick blocks together"
    " while others are sent; sendfile: the file, by the kernel",
    "Ending": "complete, client disconnected, broken (an exception, or less than was promised), or open: not over yet",
}


def index(environ: Environ, start_response: Start) -> Body:
    """A page that links every shape."""
    root = html.escape(quote(environ.get("SCRIPT_NAME", ""), encoding="latin-1"))
    server = html.escape(environ.get("SERVER_SOFTWARE", "an unnamed server"))
    host = f"http://{html.escape(environ.get('HTTP_HOST', '127.0.0.1:8000'))}{root}"
    is_told = "tailrace.delivery" in environ
    if is_told:
        legend = "".join(f"<dt>{name}<dd>{text}" for name, text in LEGEND.items())
        told = "Beside each is how its last response was delivered. Follow a link and come back."
        more = f"<details><summary>What the figures say</summary><dl>{legend}</dl></details>\n"
        also = f"<p>The figures as JSON: <code>curl -s {host}/records</code></p>"
    else:
        told, more, also = "This server does not tell how it delivers them; tailrace does.", "", ""
    rows = "".join(row(root, each) for each in SHAPES)
    return answer(
        start_response,
        "text/html; charset=utf-8",
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">\n'
        f"<title>Seeds</title>\n<style>{STYLE}</style>\n<main>\n<header><h1>Seeds</h1>\n"
        f"<p>One application, {len(SHAPES)} shapes of response. Served by {server}. {told}</p>"
        f'<button type="button" hidden>Try every shape</button></header>\n<ul>\n{rows}</ul>\n'
        f'<form action="{root}/echo" method="post" enctype="text/plain"><input name="text" value="a request body"'
        ' aria-label="Text to send"><button>Echo</button></form>\n'
        f"<footer>{more}<p>Measure one: <code>curl -so /dev/null -w '%{{time_total}}\\n' {host}/words</code></p>{also}"
        f"</footer>\n</main>\n<script>{SCRIPT}</script>\n",
    )


STYLE = """
:root {
  color-scheme: light dark;
  --ink: light-dark(#1b2a33, #e4ebee); --dim: light-dark(#5d707b, #93a5ae); --line: light-dark(#d9e0e3, #2c3a42);
  --card: light-dark(#fff, #172128); --back: light-dark(#f4f6f6, #10181d);
  --go: light-dark(#00695f, #58c9ba); --bad: light-dark(#a8321f, #f0907e);
}
* { box-sizing: border-box }
body { margin: 0; padding: 3rem 5vw; font: 1em/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back) }
main { max-width: 50rem; margin: auto }
header { display: flex; flex-wrap: wrap; gap: .4rem 2rem; align-items: end; margin-bottom: 1.5rem }
h1 { width: 100%; margin: 0; font-size: 2rem; letter-spacing: -.02em }
header p { flex: 1 1 20rem; margin: 0; color: var(--dim) }
ul { margin: 0; padding: 0; list-style: none }
ul { background: var(--card); border: 1px solid var(--line); border-radius: 8px }
li { display: flex; flex-wrap: wrap; align-items: center; gap: .1rem 1rem; padding: .9rem 1.2rem }
li + li { border-top: 1px solid var(--line) }
li > a { flex: 1 }
li > p, li > dl, output { margin: 0; flex: 0 0 100%; color: var(--dim); font-size: .925rem }
li dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(4.7rem, 1fr)); gap: .3rem .5rem }
li > .told, output { margin-top: .4rem; font-variant-numeric: tabular-nums }
[hidden], .told:empty, output:empty { display: none }
dd { margin: 0 }
li dt { font-size: .75rem }
li dd { color: var(--ink); white-space: nowrap }
.open dd { color: var(--dim) }
.broken div:last-child dd, .client-disconnected div:last-child dd, .timed-out div:last-child dd { color: var(--bad) }
a { color: var(--go); font-weight: 600; text-decoration: none }
a:hover, a:focus-visible { text-decoration: underline }
code { font: .875rem ui-monospace, monospace; color: var(--dim) }
@media (max-width: 34rem) { li code { display: none } }
form { display: flex; gap: .6rem; margin-top: 1.5rem }
input, button { font: inherit; color: inherit; padding: .5rem .8rem; border: 1px solid var(--line); border-radius: 6px }
input { flex: 1; min-width: 0; background: var(--card) }
button { background: none; color: var(--go); font-weight: 600; cursor: pointer }
button:hover:enabled { border-color: var(--go) }
button:disabled { color: var(--dim); cursor: progress }
li button { padding: .1rem .7rem; font-size: .875rem }
form button { background: var(--go); border-color: var(--go); color: var(--back) }
footer { margin-top: 2rem; color: var(--dim); font-size: .875rem; overflow-wrap: anywhere }
footer p { margin: .4rem 0 }
footer dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .6rem 0 1rem }
"""

# Without it the page works by following a link and coming back. It takes the records from the page, fetched anew.
SCRIPT = """
const rows = [...document.querySelectorAll("li")];
const all = document.querySelector("header button");

async function refresh() {
  const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
  const fresh = page.querySelectorAll(".told");
  rows.forEach((row, place) => row.querySelector(".told").replaceWith(fresh[place]));
}

async function attempt(row) {
  const [link, button, output] = ["a", "button", "output"].map((name) => row.querySelector(name));
  const echo = { method: "POST", body: document.querySelector("input").value };
  const began = performance.now();
  const since = () => `${(performance.now() - began).toFixed(1)} ms`;
  button.disabled = true;
  try {
    const response = await fetch(link.href, link.pathname.endsWith("/echo") ? echo : { cache: "no-store" });
    const reader = response.body.getReader();
    let first, size = 0;
    for (let part; !(part = await reader.read()).done; size += part.value.length) first ??= since();
    if (!response.ok) throw new Error(`status ${response.status}`);
    const whole = `all ${size.toLocaleString("en")} bytes after ${since()}`;
    output.textContent = `In this browser: first byte after ${first ?? since()}, ${whole}.`;
  } catch (error) {
    output.textContent = `In this browser: failed after ${since()} (${error.message}).`;
  }
  await refresh().catch(() => {});
  if (row.querySelector(".open")) setTimeout(refresh, 500);
  button.disabled = false;
}

for (const row of rows) row.querySelector("button").onclick = () => attempt(row);
all.onclick = async () => {
  all.disabled = true;
  for (const row of rows) await attempt(row);
  all.disabled = false;
};
for (const button of document.querySelectorAll("button[hidden]")) button.hidden = false;
addEventListener("pageshow", (event) => event.persisted && refresh());
"""
