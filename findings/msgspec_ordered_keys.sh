#!/bin/sh
# msgspec's JSON encoder takes dicts with keys of dates and numbers, and refuses them once it shall order them.
#
# msgspec 0.22.0. `order="deterministic"` is for bytes that are equal for equal values, such as keys and check sums.
# Seen: without it keys of int, date, UUID and Decimal are written as text and read back; with it, or with "sorted", the
# same value is a TypeError, also where the dict has one entry. The way around is to make text of the keys first:
# `to_builtins(value, str_keys=True)` and then the ordered encoder, which gives the bytes that the plain one gives.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet 'msgspec==0.22.0'
"$directory/venv/bin/python" - <<'PYTHON'
from datetime import date
from decimal import Decimal
from uuid import UUID

import msgspec

for key in (7, date(2026, 1, 2), UUID(int=5), Decimal("1.50")):
    value = {key: "tea"}
    plain = msgspec.json.encode(value)
    assert msgspec.json.decode(plain, type=dict[type(key), str]) == value
    for order in ("deterministic", "sorted"):
        encoder = msgspec.json.Encoder(order=order)
        try:
            found = encoder.encode(value)
        except TypeError as error:
            found = error
        print(type(key).__name__, plain.decode(), order, "gives", repr(found))
        assert isinstance(found, TypeError)
        assert encoder.encode(msgspec.to_builtins(value, str_keys=True)) == plain
PYTHON
