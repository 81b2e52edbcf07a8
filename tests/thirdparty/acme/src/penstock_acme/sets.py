"""A kind of store: sets, which remember what was added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from penstock import BytesStore, RowKeys, Serde, StateStore, StoreContext, StoreSpec


@dataclass(frozen=True)
class SetSpec(StoreSpec):
    """Declares a set; `item_serde` is a serde or the name of an installed one (None: the default state serde).

    `penstock reshard` can divide it if its items are the keys of records.
    """

    kind = "acme.set"
    row_keys = RowKeys(key_of=bytes, serde=attrgetter("item_serde"))

    item_serde: str | Serde[Any] | None = None


class SetStore(StateStore):
    """Items that were added, in the order of their bytes."""

    def __init__(self, below: BytesStore, serde: Serde[Any]) -> None:
        self.name = below.name
        self._below = below
        self._serde = serde

    def add(self, item: Any) -> bool:
        """Add an item; return whether it is new."""
        key = self._serde.serialize(item)
        if self._below.get(key) is not None:
            return False
        self._below.put(key, b"")
        return True

    def __iter__(self) -> Iterator[Any]:
        return (self._serde.deserialize(key) for key, _ in self._below.range())


def build_set(spec: SetSpec, below: BytesStore, context: StoreContext) -> SetStore:
    """Return the set that `spec` declares."""
    return SetStore(below, context.serde(spec.item_serde, spec.name))
