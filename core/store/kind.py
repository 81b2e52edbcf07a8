"""StoreKind and TopicRows: a kind of store whose rows have keys of their own, and how a changelog topic has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .context import BytesStore, StoreContext
from .state_store import StateStore


class TopicRows(Protocol):
    """The rows of one store as records of its changelog topic, and back."""

    def record_of(self, row_key: bytes, data: bytes | None) -> tuple[bytes, bytes | None, int | None]:
        """Return key and content of the record for a row, and its timestamp in ms (None: any)."""
        ...

    def row_of(self, key: bytes, data: bytes | None, timestamp: int) -> tuple[bytes, bytes | None]:
        """Return key and content of the row for a record."""
        ...


@dataclass(frozen=True)
class StoreKind:
    """A store kind with rows of its own in a changelog topic. A kind without is the function `build` alone.

    `topic_rows` is called with the store's fixed options. It returns the same for the same options in every later
    version, because its records are in the topic.
    """

    build: Callable[[Any, BytesStore, StoreContext], StateStore]
    topic_rows: Callable[[Mapping[str, int]], TopicRows]

    def __call__(self, spec: Any, bytes_store: BytesStore, context: StoreContext) -> StateStore:
        """Return the store that `spec` declares, on top of `bytes_store`."""
        return self.build(spec, bytes_store, context)
