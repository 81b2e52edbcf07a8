#!/bin/sh
# pydantic writes dicts with keys of Literal, Enum and tuple types as JSON, and does not read what it wrote.
#
# pydantic 2.14.4, pydantic-core 2.50.5. TypeAdapter.dump_json makes text of each key, and validate_json has to make the
# key of that text again. Seen: keys of int, date and IntEnum come back; those of Literal[1], of a plain Enum whose
# values are numbers, and of tuples are written ("1", "1,2"), and reading the same bytes by the same adapter is a
# ValidationError. So the test that a type is fit for storage is to read back what it writes, keys of dicts included.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet 'pydantic==2.14.4'
"$directory/venv/bin/python" - <<'PYTHON'
from datetime import date
from enum import Enum, IntEnum
from typing import Literal

from pydantic import TypeAdapter, ValidationError


class Grade(Enum):
    BEST = 1


class Rank(IntEnum):
    FIRST = 1


def comes_back(key_type, key):
    adapter = TypeAdapter(dict[key_type, str])
    data = adapter.dump_json({key: "tea"})
    try:
        found = adapter.validate_json(data) == {key: "tea"}
    except ValidationError:
        found = False
    print(key_type, "is written as", data.decode(), "and", "comes back" if found else "is not read")
    return found


assert comes_back(int, 1)
assert comes_back(date, date(2026, 1, 2))
assert comes_back(Rank, Rank.FIRST)
assert not comes_back(Literal[1], 1)
assert not comes_back(Grade, Grade.BEST)
assert not comes_back(tuple[int, int], (1, 2))
PYTHON
