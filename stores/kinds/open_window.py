"""OpenWindow: one window of a window store, with recently used entries kept as objects until the commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import BytesStore, Serde

from ..rows.escaping import without_end
from ..rows.key_form import MISSING, KeyForm
from ..rows.value_form import ValueForm
from .plain import PlainStore


class WindowKeys(KeyForm):
    """The form of the keys in one window: `user` is that of the user's keys, `around` what is before and behind them.

    For `around` see `BucketKeys.around`.
    """

    def __init__(self, user: KeyForm, around: tuple[bytes, bytes]) -> None:
        self.types = user.types
        self.user = user
        self._before, self._behind = around

    def locate(self, key: Any) -> tuple[bytes, Any]:
        raw, which = self.user.locate(key)
        return self._before + without_end(raw) + self._behind, which

    def to_bytes(self, key: Any, serde: Serde[Any] | None = None) -> bytes:
        return self._before + without_end(self.user.to_bytes(key, serde)) + self._behind

    def serializer(self) -> Callable[[Any], bytes]:
        before, behind, serialize = self._before, self._behind, self.user.serializer()

        def row_key(key: Any) -> bytes:
            raw = serialize(key)
            return before + (without_end(raw) if b"\x00" in raw else raw) + behind

        return row_key


class OpenWindow(PlainStore):
    """One window: what a key-value store does for single entries, with the user's keys. It is not scanned.

    `is_new`: the store below has no rows of it, so nothing need be read.
    """

    def __init__(self, start: int, below: BytesStore, keys: WindowKeys, values: ValueForm, *, is_new: bool) -> None:
        self.start = start
        self._begin(below, keys, values)
        self.is_complete = is_new
        self._user = keys.user

    def read(self, key: Any) -> Any:
        """Return the value of an entry that is not kept as an object, though its key is of the types that may be."""
        if self.is_complete:
            _, which = self._user.locate(key)
            if which is not MISSING:
                self._keep(which, None)
                return None
        return self._read(*self.keys.locate(key))

    def expire(self) -> None:
        """Drop unwritten entries; deletions stay, because the store below may have the entries."""
        self.pending = {key: None for key, value in self.pending.items() if value is None}

    def _compile(self) -> None:
        """Leave it: there may be many windows, and what is kept as an object is looked up without these methods."""
