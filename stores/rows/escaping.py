"""A key of any bytes as the first part of a longer one: order is kept, and no such part is the beginning of another."""

from __future__ import annotations

from penstock import StoreError

END = b"\x00\x00"


def escaped(key: bytes) -> bytes:
    r"""Return `key` such that other bytes may follow it: each 00 as 00 ff, and 00 00 at the end.

    Rows compared as bytes are then ordered by key, and rows of one key by the following bytes.

    >>> escaped(b"a"), escaped(b"")
    (b'a\x00\x00', b'\x00\x00')
    """
    return without_end(key) + END


def without_end(key: bytes) -> bytes:
    """Return `key` as `escaped` does, without the two zeros at the end."""
    return key.replace(b"\x00", b"\x00\xff") if b"\x00" in key else key


def unescaped(row: bytes, start: int = 0) -> tuple[bytes, int]:
    """Return the key that is escaped in `row` from `start` on, and where in `row` it ends.

    Raises StoreError for a row without the end of a key.

    >>> unescaped(escaped(b"a") + b"rest")
    (b'a', 3)
    """
    end = row.find(END, start)
    if end < 0:
        raise StoreError(f"a stored row is damaged: {row[:40]!r} has no end of its key")
    return row[start:end].replace(b"\x00\xff", b"\x00"), end + len(END)
