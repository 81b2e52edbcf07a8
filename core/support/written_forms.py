"""Written forms of serdes: of plain attributes, and of serdes that are made of others."""

from __future__ import annotations

import re


def parts_of_form(form: str) -> tuple[str, list[str]]:
    """Return the name and the parts of "Name(part, part)"; parts may have brackets, and text in quotes, as JSON has.

    >>> parts_of_form('Pair(of({"a":[1, 2]}), Listed(x, y))')
    ('Pair', ['of({"a":[1, 2]})', 'Listed(x, y)'])
    """
    name, _, rest = form.partition("(")
    parts, depth, quoted, start = [], 0, False, 0
    for match in re.finditer(r'\\.|["()\[\]{}]|, ', rest):
        token = match.group()
        if token == '"':
            quoted = not quoted
        elif quoted or token.startswith("\\"):
            continue
        elif token == ", ":
            if depth == 0:
                parts.append(rest[start : match.start()])
                start = match.end()
        else:
            depth += 1 if token in "([{" else -1
    return name, [*parts, rest[start:-1]] if rest else []


def is_plain(value: object) -> bool:
    """Return whether a value is plain data: text, bytes, numbers, None, and collections of them."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, (str, bytes, int, float, bool))


def plain_text(value: object) -> str:
    """Return a text that is the same for equal plain data in every process: sets and dicts are sorted."""
    if isinstance(value, dict):
        return repr(sorted((plain_text(key), plain_text(each)) for key, each in value.items()))
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(plain_text, value)))
    if isinstance(value, (list, tuple)):
        return repr(list(map(plain_text, value)))
    return repr(value)
