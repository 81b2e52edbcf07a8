"""Scan: the iterator that a store's range methods return."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any


class Scan:
    """`penstock.Entries` of any iterator: a `with` block or `close()` ends it early; at its end it closes itself."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterator[tuple[Any, Any]]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self

    def __next__(self) -> tuple[Any, Any]:
        return next(self._entries)

    def __enter__(self) -> Iterator[tuple[Any, Any]]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration and release its resources."""
        self._entries = iter(())


class ListScan(chain[tuple[Any, Any]]):
    """`penstock.Entries` of a list, as fast as that: `ListScan(entries)`."""

    __slots__ = ()

    def __enter__(self) -> Iterator[tuple[Any, Any]]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration."""
        for _ in self:
            pass
