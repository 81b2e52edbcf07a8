"""No changed byte of a changelog file goes unnoticed."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.changelogs.file_format import (
    DELTA,
    SNAPSHOT,
    TAIL_BYTES,
    DamagedError,
    Reader,
    check_tail,
    write_delta,
    write_snapshot,
)
from penstock.store import Change

_changes = st.dictionaries(
    st.text(max_size=5),
    st.dictionaries(st.binary(max_size=5), st.none() | st.binary(max_size=300), min_size=1, max_size=5),
    max_size=3,
).map(lambda stores: {store: sorted(rows.items()) for store, rows in stores.items()})


def _read(
    data: bytes, kind: bytes = DELTA, version: str = "v1", previous: str | None = "v0"
) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    reader = Reader(io.BytesIO(data), kind)
    reader.expect(version, previous)
    for store, rows in reader.chunks():
        found.setdefault(store, []).extend(rows)
    reader.end()
    return found


@given(_changes, st.booleans())
def test_a_delta_comes_back(changes: dict[str, list[Change]], compress: bool) -> None:
    data = write_delta(changes, "v0", "v1", compress=compress)
    assert _read(data) == changes
    check_tail(data[-TAIL_BYTES:])


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=4), st.binary(max_size=40))),
    st.integers(1, 200),
    st.booleans(),
)
def test_a_snapshot_comes_back_in_chunks(
    entries: list[tuple[str, bytes, bytes]], chunk_bytes: int, compress: bool
) -> None:
    entries.sort()
    data = b"".join(write_snapshot("v1", iter(entries), chunk_bytes=chunk_bytes, compress=compress))
    chunks = list(Reader(io.BytesIO(data), SNAPSHOT).chunks())
    assert [(store, *row) for store, rows in chunks for row in rows] == entries
    for store, rows in chunks:
        assert sum(len(key) + len(value or b"") + 16 for key, value in rows[:-1]) < chunk_bytes, store
    check_tail(data[-TAIL_BYTES:])


@pytest.mark.parametrize("compress", [False, True])
def test_every_single_damage_is_found(compress: bool) -> None:
    changes: dict[str, list[Change]] = {"counts": [(b"a", b"1"), (b"b", None)], "names": [(b"x" * 40, b"y" * 40)]}
    data = write_delta(changes, "v0", "v1", compress=compress)
    assert _read(data) == changes
    for at in range(len(data)):
        with pytest.raises(DamagedError, match="cut off"):
            _read(data[:at])
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            with pytest.raises(DamagedError):
                _read(bytes(changed))
    for wrong in (data + b"\0", data + data, b"", b"\0" * len(data)):
        with pytest.raises(DamagedError):
            _read(wrong)


def test_frames_that_moved_doubled_or_vanished_are_found() -> None:
    first = {"s": [(b"a", b"1")]}
    both = {"s": [(b"a", b"1")], "t": [(b"a", b"1")]}
    opening = len(write_delta({}, "v0", "v1")) - TAIL_BYTES
    data = write_delta(both, "v0", "v1")
    one = len(write_delta(first, "v0", "v1")) - TAIL_BYTES - opening
    head, frames, end = data[:opening], data[opening:-TAIL_BYTES], data[-TAIL_BYTES:]
    chunk, other = frames[:one], frames[one:]
    assert len(chunk) == len(other)
    for wrong in (chunk, other, other + chunk, chunk + chunk + other, b""):
        with pytest.raises(DamagedError):
            _read(head + wrong + end)
    assert _read(head + chunk + other + end) == both


def test_a_file_under_another_name_is_found() -> None:
    data = write_delta({}, "v0", "v1")
    with pytest.raises(DamagedError, match="header is that of another file"):
        _read(data, version="v2")
    with pytest.raises(DamagedError, match="header is that of another file"):
        _read(data, previous=None)
    with pytest.raises(DamagedError, match="of kind b'D'"):
        _read(data, kind=SNAPSHOT, previous=None)


def test_a_newer_format_is_named() -> None:
    data = bytearray(write_delta({}, None, "v1"))
    data[8] = 2
    with pytest.raises(DamagedError, match="format 2 and this penstock reads 1: install a newer one"):
        _read(bytes(data), previous=None)


def test_a_large_delta_is_several_frames() -> None:
    rows: list[Change] = [(b"%06d" % row, b"x") for row in range(150_000)]
    data = write_delta({"s": rows}, "v0", "v1")
    assert len(list(Reader(io.BytesIO(data), DELTA).chunks())) == 3
    assert _read(data) == {"s": rows}


def test_a_tail_that_is_too_short_is_cut_off() -> None:
    for tail in (b"", b"E", b"\0" * TAIL_BYTES):
        with pytest.raises(DamagedError, match="its last frame is missing"):
            check_tail(tail)
