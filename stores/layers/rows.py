"""Rows: values by a user's key and times behind it, with recently used ones kept as objects until the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.serde import Serde
from penstock.store import BytesStore

from .composite import Row
from .key_form import LONGEST_KEPT, MISSING, KeyForm
from .plain import PlainStore
from .value_form import ValueForm

Entry = tuple[Any, ...]
"""A user's key, and the times of the row."""


class RowKeyForm(KeyForm):
    """The form of keys that are entries; `user` is the form of the user's keys in them.

    `row_key` and `parts` turn an entry whose key is bytes into a row's key, and back.
    """

    def __init__(
        self, store: str, serde: Serde[Any], row_key: Callable[..., bytes], parts: Callable[[bytes], Entry]
    ) -> None:
        super().__init__(store, serde)
        self.user = KeyForm(store, serde)
        self._row_key = row_key
        self._parts = parts

    def locate(self, key: Any) -> tuple[bytes, Any]:
        """Return the bytes of an entry, and the entry under which its value may be kept (MISSING: not at all)."""
        user, (user_key, *times) = self.user, key
        if type(user_key) in user.types:
            raw = user.to_bytes(user_key)
            return self._row_key(raw, *times), key if len(raw) <= LONGEST_KEPT else MISSING
        raw, which = user.locate(user_key)
        return self._row_key(raw, *times), which if which is MISSING else (which, *times)

    def to_bytes(self, key: Any, serde: Serde[Any] | None = None) -> bytes:
        """Return the key of an entry's row."""
        return self._row_key(self.user.to_bytes(key[0], serde), *key[1:])

    def serializer(self) -> Callable[[Any], bytes]:
        """Return a function that makes the key of an entry's row, sooner than `to_bytes`."""
        row_key, serialize = self._row_key, self.user.serializer()

        def of_entry(entry: Entry) -> bytes:
            key, *times = entry
            return row_key(serialize(key), *times)

        return of_entry

    def to_object(self, raw: bytes) -> Entry:
        """Return the entry whose row has the key `raw`."""
        key, *times = self._parts(raw)
        return (self.user.to_object(key), *times)


class Rows(PlainStore):
    """A store of entries: a key-value store whose keys are (key, times...)."""

    def __init__(self, below: BytesStore, keys: RowKeyForm, values: ValueForm) -> None:
        self.user = keys.user
        self.can_wait = values.compile_test()
        self.free_types = values.free_values
        self._begin(below, keys, values)

    def decoded(self, rows: Iterator[Row]) -> Iterator[tuple[Entry, Any]]:
        """Yield (entry, value) of rows."""
        return self._decoded(rows)

    def _compile_get(self) -> Callable[[Any], Any]:
        pending, clean, slow, key_types = self.pending.get, self.clean.get, self._get, self.user.types

        def get(entry: Entry) -> Any:
            if type(entry[0]) in key_types:
                value = pending(entry, MISSING)
                if value is MISSING:
                    value = clean(entry, MISSING)
                    if value is MISSING:
                        return slow(entry)
                return value
            return slow(entry)

        return get

    def _compile_put(self) -> Callable[[Any, Any], None]:
        return self._put

    def read(self, entry: Entry) -> Any:
        """Return the value of an entry that is neither in `pending` nor in `clean`, or None."""
        raw, which = self.keys.locate(entry)
        if which is not entry and which is not MISSING:
            return self.get(which)
        return self._read(raw, which)
