"""Keys of any length in LMDB, whose own have 1 to 511 bytes, in the same order.

A short key (under 510 bytes) is stored behind the byte 00. A longer one is stored in pieces: the first 510 bytes behind
the byte 00 are an LMDB key of full length, whose value is not the user's but the number of a node (8 bytes); what
follows is stored behind the byte 01 and that number, by the same rule, so that the next piece has up to 502 bytes, and
so on:

    b"abc"          -> 00 "abc"                               value
    b"x" * 1200     -> 00 "x" * 510                           node 1
                       01 node 1 "x" * 502                    node 2
                       01 node 2 "x" * 188                    value

An LMDB key of full length is always a node, and all keys that pass through it start with its bytes, so order is kept at
every step; a key costs one look-up for each 500 bytes, however many keys share them. The LMDB key 02 holds the next
node number and how many nodes there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any

FULL = 511
"""The length of an LMDB key that is a node."""
SHORT = FULL - 1
"""Keys with fewer bytes than this are stored behind HEAD."""
HEAD = b"\x00"
_NODE_HEAD = b"\x01"
_COUNTER = b"\x02"
_LONG = Struct(">Q")
_COUNTS = Struct(">QQ")

# lmdb has no types: a Transaction and a database handle are Any here.


def get(transaction: Any, database: Any, key: bytes) -> bytes | None:
    """Return the value of a key."""
    head = HEAD
    while len(head) + len(key) >= FULL:
        cut = FULL - len(head)
        node = transaction.get(head + key[:cut], None, database)
        if node is None:
            return None
        head, key = _NODE_HEAD + node, key[cut:]
    value: bytes | None = transaction.get(head + key, None, database)
    return value


def put(transaction: Any, database: Any, key: bytes, value: bytes) -> None:
    """Set the value of a key."""
    head = HEAD
    while len(head) + len(key) >= FULL:
        cut = FULL - len(head)
        whole = head + key[:cut]
        node = transaction.get(whole, None, database)
        if node is None:
            last, alive = _counts(transaction, database)
            node = _LONG.pack(last + 1)
            transaction.put(_COUNTER, _COUNTS.pack(last + 1, alive + 1), db=database)
            transaction.put(whole, node, db=database)
        head, key = _NODE_HEAD + node, key[cut:]
    transaction.put(head + key, value, db=database)


def delete(transaction: Any, database: Any, key: bytes) -> None:
    """Delete a key, and the nodes that no key needs any more."""
    head, path = HEAD, []
    while len(head) + len(key) >= FULL:
        cut = FULL - len(head)
        whole = head + key[:cut]
        node = transaction.get(whole, None, database)
        if node is None:
            return
        head, key = _NODE_HEAD + node, key[cut:]
        path.append((whole, head))
    transaction.delete(head + key, db=database)
    for whole, head in reversed(path):
        cursor = transaction.cursor(database)
        if cursor.set_range(head) and cursor.key().startswith(head):
            break
        transaction.delete(whole, db=database)
        last, alive = _counts(transaction, database)
        transaction.put(_COUNTER, _COUNTS.pack(last, alive - 1), db=database)


def count(transaction: Any, database: Any) -> int:
    """Return how many keys there are."""
    entries: int = transaction.stat(database)["entries"]
    last, alive = _counts(transaction, database)
    return entries - alive - (last > 0)


def scan(
    transaction: Any, database: Any, start: bytes | None, end: bytes | None, reverse: bool, head: bytes = HEAD
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) for start <= key < end in order, or reversed; of the keys behind `head`, without it."""
    low = head if start is None else head + start
    high = head[:-1] + bytes((head[-1] + 1,)) if end is None and head is HEAD else None
    if high is None:
        high = _NODE_HEAD + _LONG.pack(_LONG.unpack(head[1:])[0] + 1) if end is None else head + end
    first, last = low[:FULL], high[:FULL]
    cursor = transaction.cursor(database)
    if reverse:
        if not cursor.set_range(last):
            found = cursor.last()
        else:
            # `high` is left out, but keys below it may pass through the node that shares its first bytes.
            found = cursor.key() == last if len(high) > FULL else False
            found = found or cursor.prev()
        entries = cursor.iterprev(True, True)
    else:
        found = cursor.set_range(first)
        entries = cursor.iternext(True, True)
    if not found:
        return
    strip = len(head)
    for key, value in entries:
        if key < first if reverse else key >= high:
            return
        if len(key) < FULL:
            yield key[strip:], value
        else:
            within = scan(
                transaction,
                database,
                low[FULL:] if key == first else None,
                high[FULL:] if key == last else None,
                reverse,
                _NODE_HEAD + value,
            )
            for rest, rest_value in within:
                yield key[strip:] + rest, rest_value


def _counts(transaction: Any, database: Any) -> tuple[int, int]:
    """Return the last node number given, and how many nodes there are."""
    data = transaction.get(_COUNTER, None, database)
    if data is None:
        return 0, 0
    last, alive = _COUNTS.unpack(data)
    return last, alive
