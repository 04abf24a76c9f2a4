"""What the values of the options of static files say: paths of URLs, media types, rules for Cache-Control.

The functions are items of `values.pairs`: they raise ValueError whose message completes the sentence
"--static '/a': ...".
"""

from __future__ import annotations

import difflib
import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

# In place of a pattern: files whose name contains a hash of their content.
FINGERPRINTED: Final = "fingerprinted"

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE: Final = re.compile(rf"{_TOKEN}/{_TOKEN}( *;[ !-~]*)?", re.ASCII)
# Of responses, RFC 9111 section 5.2.2 and RFC 8246.
_WORDS: Final = (
    "immutable",
    "must-revalidate",
    "must-understand",
    "no-cache",
    "no-store",
    "no-transform",
    "private",
    "proxy-revalidate",
    "public",
)
# These have seconds. RFC 5861 has the last two.
_TIMES: Final = ("max-age", "s-maxage", "stale-while-revalidate", "stale-if-error")
_NO_FIELD: Final = "none"
_DURATION: Final = re.compile(r"([0-9]+)([smhdwy]?)", re.IGNORECASE | re.ASCII)
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604_800, "y": 31_536_000}
# RFC 9111 section 1.2.2.
_MAX_SECONDS: Final = 1 << 31


def mount(prefix: str, folder: str) -> tuple[str, str]:
    """The path of the URLs, decoded and without a slash at its end (so that of all paths is empty), and the folder."""
    if not prefix.startswith("/"):
        raise ValueError(f"must begin with a slash, like any URL path: /{prefix}={folder}")
    if "?" in prefix or "#" in prefix:
        raise ValueError("a URL path cannot contain ? or #: write %3F and %23")
    if not folder:
        raise ValueError(f"must name a folder, as in {prefix}=./dist")
    try:
        path = unquote_to_bytes(prefix).decode().rstrip("/")
    except UnicodeDecodeError:
        raise ValueError("must be UTF-8 when decoded") from None
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise ValueError("must not contain control characters")
    if path and any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise ValueError("must not contain empty parts, . or ..")
    return path, folder


def write_mount(prefix: str, folder: str) -> str:
    """What `mount` reads."""
    return f"{quote(prefix, safe='/:@!$&(),;~+*') or '/'}={folder}"


def root(folder: str) -> str:
    """A folder of files that the application names by their path."""
    if not folder:
        raise ValueError("must name a folder, as in /srv/media, or a URL path and a folder")
    return folder


def write_root(prefix: str | None, folder: str) -> str:
    """What `root` or `mount` reads."""
    if prefix is not None:
        return write_mount(prefix, folder)
    return f"={folder}" if "=" in folder else folder


def fallback(status: str, file: str) -> tuple[str, str]:
    """A status, and the path of a file below a folder that is not known yet."""
    if status not in ("200", "404"):
        raise ValueError(f"must begin with the status 404 or 200, such as 404={file or '404.html'}")
    parts = file.removeprefix("./").split("/")
    if "" in parts or "." in parts or ".." in parts:
        raise ValueError(f"must name a file below the folder, such as {status}=index.html")
    return status, "/".join(parts)


def index(name: str) -> str:
    """The name of a file that is sent for its folder."""
    if "/" in name or name in (".", ".."):
        raise ValueError(f"must be file names without a slash, and {name!r} is not")
    return name


def media_type(extension: str, name: str) -> tuple[str, str]:
    """The extension in lower case and without the dot, and the type, which is sent as it is written."""
    bare = extension.removeprefix(".").lower()
    if bare == extension.lower() or not bare or re.search(r"[./\s]", bare):
        raise ValueError(f"must begin with an extension, such as .data={name or 'text/plain'}")
    if not _MEDIA_TYPE.fullmatch(name):
        raise ValueError(f"must name a media type, such as {extension}=text/plain")
    return bare, name


def cache_rule(pattern: str, value: str) -> tuple[str, str]:
    """A pattern, or FINGERPRINTED, and the value of the field, empty where none is to be sent."""
    if not pattern:
        raise ValueError("must have a pattern, such as /assets, *.html or fingerprinted")
    if "/" in pattern and not pattern.startswith("/"):
        raise ValueError(f"a pattern with a slash must begin with one: /{pattern.removeprefix('./')}")
    words = [word.strip() for word in value.split(",") if word.strip()]
    if not words:
        raise ValueError(f"must have a value, such as 1y or no-cache; {_NO_FIELD}: no Cache-Control field")
    if [word.lower() for word in words] == [_NO_FIELD]:
        return pattern, ""
    read = [_directive(word) for word in words]
    names = [word.partition("=")[0] for word in read]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"must contain {repeated[0]} only once")
    return pattern, ", ".join(read)


def write_cache_rule(pattern: str, value: str) -> str:
    """What `cache_rule` reads."""
    return f"{pattern}={value or _NO_FIELD}".replace(", ", ",")


def _directive(word: str) -> str:
    """One word of a Cache-Control field."""
    word = word.lower()
    if word in _WORDS:
        return word
    if word == _NO_FIELD:
        raise ValueError(f"{_NO_FIELD} means no field, and must stand alone")
    name, equals, time = word.rpartition("=")
    if (not equals or name in _TIMES) and (found := _DURATION.fullmatch(time)):
        # Not int(), which refuses thousands of digits with a message of its own.
        seconds = int(found[1][:12]) * _SECONDS[found[2]]
        if seconds > _MAX_SECONDS or len(found[1]) > 12:
            raise ValueError(f"{time} is too long: at most {_MAX_SECONDS} seconds, or 68y")
        return f"{name or _TIMES[0]}={seconds}"
    near = difflib.get_close_matches(word, [*_WORDS, *_TIMES, _NO_FIELD], n=1)
    hint = f"did you mean {near[0]}?; " if near and near[0] != word else ""
    raise ValueError(
        f"unknown word {word!r}; {hint}choose from a time such as 1y, 30d, 12h or 60, {_NO_FIELD}, "
        f"{', '.join(_WORDS)}, and {', '.join(f'{each}=TIME' for each in _TIMES)}"
    )
