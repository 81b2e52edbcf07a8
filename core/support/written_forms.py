"""Written forms of serdes that are made of others."""

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
