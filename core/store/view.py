"""The interface to the content of a store backend at one moment, for a thread beside the engine's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class StoreView(Protocol):
    """Stores of one backend as they were when the view was made, whatever is written later.

    One thread uses it, not the one that uses the backend, which may write, close or destroy the backend meanwhile.
    """

    version: str | None
    """The version of the content."""

    def range(self, store: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield every (key, value) of a store in key order.

        Raises StoreError, or StaleStoreError if another view may succeed, when the content cannot be read to its end.
        """
        ...

    def close(self) -> None:
        """Release everything; idempotent, and in any thread."""
        ...
