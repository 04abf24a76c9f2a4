"""Text from other processes, on its way to a terminal."""

import pytest

from tailrace.printable import printable, printable_document


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("main loop é", "main loop é"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("a\nb\tc\x7f", r"a\nb\tc\x7f"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    assert printable(text) == shown


def test_every_text_of_a_document_is_escaped():
    found = {"a\x1b": [{"b": "\x1b[2J"}, 1, 2.5, None, True]}
    assert printable_document(found) == {r"a\x1b": [{"b": r"\x1b[2J"}, 1, 2.5, None, True]}
