"""Text from another process, made safe to print: a terminal obeys control characters."""

from __future__ import annotations

from typing import Any


def printable(text: str) -> str:
    """The text with each character that is not printable escaped, as in `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_document(found: Any) -> Any:
    """A JSON value in which every text is `printable`, keys included."""
    if isinstance(found, str):
        return printable(found)
    if isinstance(found, list):
        return [printable_document(each) for each in found]
    if isinstance(found, dict):
        return {printable(key): printable_document(each) for key, each in found.items()}
    return found
