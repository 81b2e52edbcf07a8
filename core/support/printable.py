"""Text of records and errors, for people: characters that control a terminal or turn text are escaped."""

from __future__ import annotations

_CONTROLS = {
    code: f"\\u{code:04x}"
    for code in (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Control characters but for tab and line feed, and those that turn the direction of text, with their JSON escapes."""


def printable(text: str) -> str:
    r"""Return text for a terminal or a page: what would move a cursor, colour or turn text, or not be seen is escaped.

    >>> printable("a\tb\n\x1b[2J")
    'a\tb\n\\u001b[2J'
    """
    return text.translate(_CONTROLS)
