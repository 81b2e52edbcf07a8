"""Timer stores: where the engine keeps the timers of a node. The engine declares them itself."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from ...clock import PunctuationType
from ...serde import Serde
from ..specs import StoreSpec
from ..state_store import Entries, StateStore, StoreTraits


class TimerStore(StateStore):
    """The timers of one node: for each key and clock, at most one time (ms)."""

    @abstractmethod
    def set(self, key: Any, at: int, clock: PunctuationType) -> None:
        """Set the timer of `key` on `clock`; it replaces an earlier one."""

    @abstractmethod
    def cancel(self, key: Any, clock: PunctuationType) -> None:
        """Remove the timer of `key` on `clock`, if it has one."""

    @abstractmethod
    def entries(self, clock: PunctuationType) -> Entries[Any, int]:
        """Iterate over (key, time) of a clock, the earliest first, and in the order of the keys' bytes."""

    @abstractmethod
    def next_due(self, clock: PunctuationType) -> int | None:
        """Return a time before which no timer of `clock` is due: that of the earliest one, or a little before it."""

    @abstractmethod
    def first_due(self, clock: PunctuationType, now: int) -> tuple[int, bytes] | None:
        """Return time and key, in bytes, of the earliest timer that is due at `now`; None if none is."""

    @abstractmethod
    def take(self, clock: PunctuationType) -> tuple[Any, int]:
        """Remove the timer that `first_due` has just returned; return its key and time."""


@dataclass(frozen=True)
class TimerStoreSpec(StoreSpec):
    """The store of a node's timers; `add_processor` declares it for a processor that has `on_timer`."""

    kind = "timers"

    key_serde: str | Serde[Any] | None = None

    @property
    def traits(self) -> StoreTraits:
        """Timers are found by their time in an index."""
        return StoreTraits(is_indexed=True)
