"""Text of records and errors, for people: characters that control a terminal or turn text are escaped."""

from __future__ import annotations

_CONTROLS = {
    code: f"\\u{code:04x}"
    for code in (
        *(*range(9), *range(11, 32), *range(127, 160)),  # control characters but for tab and line feed
        *(0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # that turn the direction of text
        *(0x2028, 0x2029, 0x200B, *range(0x2060, 0x2065), 0xFEFF),  # that end a line, or are not seen
        *range(0xD800, 0xE000),  # halves of surrogate pairs, which UTF-8 does not have
    )
}
"""Characters that are escaped, with their JSON escapes."""
_ENDS = {ord("\t"): "\\t", ord("\n"): "\\n"}


def printable(text: str) -> str:
    r"""Return text for a terminal or a page: what would move a cursor, colour or turn text, or not be seen is escaped.

    >>> printable("a\tb\n\x1b[2J")
    'a\tb\n\\u001b[2J'
    """
    return text.translate(_CONTROLS)


def on_one_line(text: str) -> str:
    r"""Return `printable` text on one line: a name or a cell of a table, which could pass for the next one else.

    >>> on_one_line("orders\n\x1b[2J")
    'orders\\n\\u001b[2J'
    """
    return printable(text).translate(_ENDS)
