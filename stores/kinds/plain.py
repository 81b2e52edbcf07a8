"""TypedStore: keys and values of the user's types over a BytesStore; PlainStore keeps recently used ones as objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, ClassVar

from penstock import BytesStore, Entries, KeyValueStore, Serde
from penstock.compiled import records as compiled
from penstock.store.calls import StoreCalls

from ..rows.key_form import MISSING, KeyForm
from ..rows.scan import Scan
from ..rows.value_form import ValueForm

_PORTION_BYTES = 8 << 20
_FEW_ROWS = 32
"""How many rows are taken between two looks at their bytes: to look at each takes as long as to read it."""


class TypedStore(KeyValueStore[Any, Any]):
    """A KeyValueStore over a BytesStore, whose entries are of a `KeyForm` and a `ValueForm`.

    A subclass has `get` and `put`. If it keeps objects that the BytesStore does not have yet, `flush_cache` writes
    them: scans call it first.
    """

    name: str
    keys: KeyForm
    values: ValueForm
    _below: BytesStore

    def flush_cache(self) -> None:
        """Write pending objects to the BytesStore below."""

    def range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        """Iterate over start <= key <= end in the order of the serialized keys."""
        return self._scan(start, end, reverse=False)

    def reverse_range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        return self._scan(start, end, reverse=True)

    def prefix_scan(self, prefix: Any, serde: Serde[Any] | None = None) -> Entries[Any, Any]:
        self.flush_cache()
        low = self.keys.to_bytes(prefix, serde)
        return Scan(self._decoded(self._below.range(low, after_prefix(low))))

    def _scan(self, start: Any, end: Any, *, reverse: bool) -> Entries[Any, Any]:
        self.flush_cache()
        low = None if start is None else self.keys.to_bytes(start)
        high = None if end is None else self.keys.to_bytes(end) + b"\x00"
        return Scan(self._decoded(self._below.range(low, high, reverse=reverse)))

    def _decoded(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[Any, Any]]:
        for raw, data in entries:
            yield self.keys.to_object(raw), self.values.to_object(raw, data)


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the least bytes above all that start with `prefix`; None when there are none.

    >>> after_prefix(b"ab"), after_prefix(b"a" + bytes([255])), after_prefix(b"")
    (b'ac', b'b', None)
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


CACHED_ENTRIES = 131_072
"""How many entries a store keeps as objects at most; some 30 MB of small ones."""


class PlainStore(TypedStore):
    """A KeyValueStore: serdes, the value's envelope, and a cache of entries as objects.

    The cache is two dicts, with None for a key that has no value: `pending` has entries that were put and are not
    serialized yet, `clean` has entries as they are in the BytesStore below; `pending` takes precedence. A key in
    neither takes the slow path, so a TypeError in the fast path is of a key that cannot be hashed.

    `KeyForm` and `ValueForm` say which entries may be kept. `is_complete`: all entries under keys that may be kept are,
    so such a key that is not there has no value.
    """

    form_of_values: ClassVar[type[ValueForm]] = ValueForm

    def __init__(self, below: BytesStore, key_serde: Serde[Any], value_serde: Serde[Any]) -> None:
        self._begin(below, KeyForm(below.name, key_serde), self.form_of_values(below.name, value_serde))

    def _begin(self, below: BytesStore, keys: KeyForm, values: ValueForm) -> None:
        self.name = below.name
        self._below = below
        self.keys = keys
        self.values = values
        self.pending: dict[Any, Any] = {}
        self.clean: dict[Any, Any] = {}
        self.is_complete = False
        self.calls: StoreCalls = StoreCalls()
        self._compile()

    def _compile(self) -> None:
        # The two hot methods are closures: no look-up in self, and no type check where no other type can be equal.
        setattr(self, "get", self._compile_get())  # noqa: B010
        setattr(self, "put", self._compile_put())  # noqa: B010

    @property
    def user_values(self) -> ValueForm:
        """The form of the values as the user has them."""
        return self.values

    # ------------------------------------------------------------------ single entries

    def get(self, key: Any) -> Any:
        return self._get(key)

    def put(self, key: Any, value: Any) -> None:
        self._put(key, value)

    def _compile_get(self) -> Callable[[Any], Any]:
        pending, clean, slow, key_types = self.pending.get, self.clean.get, self._get, self.keys.types
        gets = 0
        self.calls.add_total("gets", lambda: gets)
        if int in key_types:

            def get(key: Any) -> Any:
                nonlocal gets
                gets += 1
                if type(key) in key_types:
                    value = pending(key, MISSING)
                    if value is MISSING:
                        value = clean(key, MISSING)
                        if value is MISSING:
                            return slow(key)
                    return value
                return slow(key)

            return self._compiled_get(get)

        def get_text(key: Any) -> Any:
            nonlocal gets
            # Only a str equals a str, and only bytes equal bytes: the type need not be checked.
            gets += 1
            try:
                value = pending(key, MISSING)
                if value is MISSING:
                    value = clean(key, MISSING)
                    if value is MISSING:
                        return slow(key)
                return value
            except TypeError:  # unhashable; the slow path raises the right error
                return slow(key)

        return self._compiled_get(get_text)

    def _compile_put(self) -> Callable[[Any, Any], None]:
        pending, clean, slow = self.pending, self.clean, self._put
        key_types, free_types, fits = self.keys.types, self.values.free_types, self.values.fits
        puts = 0
        self.calls.add_total("puts", lambda: puts)
        if int in key_types:

            def put(key: Any, value: Any) -> None:
                nonlocal puts
                puts += 1
                if (
                    (type(value) in free_types or fits(value))
                    and type(key) in key_types
                    and (key in pending or key in clean)
                ):
                    pending[key] = value
                else:
                    slow(key, value)

            return self._compiled_put(put)

        def put_text(key: Any, value: Any) -> None:
            nonlocal puts
            puts += 1
            try:
                if (type(value) in free_types or fits(value)) and (key in pending or key in clean):
                    pending[key] = value
                    return
            except TypeError:  # unhashable; the slow path raises the right error
                pass
            slow(key, value)

        return self._compiled_put(put_text)

    def _compiled_get(self, get: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if compiled is None:
            return get
        reading = self.values.reading(self._below, self.keys.serializer(), CACHED_ENTRIES)
        fast = compiled.get(get, self.pending, self.clean, self.keys.types, reading)
        self.calls.add_total("gets", lambda: fast.count)
        return fast  # type: ignore[no-any-return]

    def _compiled_put(self, put: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        if compiled is None or (fit := self.values.fit()) is None:
            return put
        fast = compiled.put(put, self.pending, self.clean, self.keys.types, fit)
        self.calls.add_total("puts", lambda: fast.count)
        return fast  # type: ignore[no-any-return]

    def portions(self, size: int) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield the keys and the values of all entries in the order of the serialized keys, up to `size` at a time.

        A portion of 8 MB or more, serialized, ends before.
        """
        self.flush_cache()
        found = self._below.range()
        while rows := _portion(found, size):
            keys, values = zip(*rows, strict=True)
            yield self.keys.to_objects(keys), self.values.to_objects(keys, values)

    def entries_from(self, row: bytes) -> Iterator[tuple[bytes, Any, Any]]:
        """Yield row, key and present value of the entries from a row on; see VisitableStore."""
        self.flush_cache()
        for raw, _ in self._below.range(row):
            key = self.keys.to_object(raw)
            yield raw, key, self.get(key)

    def approximate_count(self) -> int:
        self.flush_cache()
        return self._below.approximate_count()

    # ------------------------------------------------------------------ the commit

    def flush(self) -> None:
        self.flush_cache()

    def unflushed(self) -> int:
        return len(self.pending)

    def flush_cache(self) -> None:
        """Serialize entries that were put since the last flush; they stay cached for reading."""
        if self.pending:
            self._below.put_all(self.encoded())
            self.settle()

    def settle(self) -> None:
        """Move pending entries to `clean`: the BytesStore below has them, as `encoded` returned them."""
        pending, clean = self.pending, self.clean
        clean.update(pending)
        pending.clear()
        excess = len(clean) - CACHED_ENTRIES
        if excess > 0:
            self.is_complete = False
            for old in list(islice(clean, excess + CACHED_ENTRIES // 2)):  # the oldest
                del clean[old]

    def encoded(self) -> dict[bytes, bytes | None]:
        """Return the pending entries as bytes."""
        encode = self.values.encode
        try:
            return self.values.encode_all(self.pending, self.keys.serializer())
        except Exception:  # the fast functions may refuse what `serialize` takes
            key_bytes = self.keys.to_bytes
            return {key_bytes(key): None if value is None else encode(value) for key, value in self.pending.items()}

    def discard(self) -> None:
        self.pending.clear()
        self.clean.clear()

    def close(self) -> None:
        self.discard()

    # ------------------------------------------------------------------ off the hot path

    def _get(self, key: Any) -> Any:
        if type(key) in self.keys.types:
            value = self.clean.get(key, MISSING)
            if value is not MISSING and key not in self.pending:
                return value
        raw, key = self.keys.locate(key)
        if key is not MISSING:
            value = self.pending.get(key, MISSING)
            if value is MISSING:
                value = self.clean.get(key, MISSING)
            if value is not MISSING:
                return value
        return self._read(raw, key)

    def _read(self, raw: bytes, key: Any) -> Any:
        """Return the value that the BytesStore below has, and keep it as an object under `key`, if that may be."""
        data = self._below.get(raw)
        value = None if data is None else self.values.to_object(raw, data)
        if key is not MISSING and (value is None or self.values.can_keep(value)):
            self._keep(key, value)
        return value

    def _put(self, key: Any, value: Any) -> None:
        if type(key) in self.keys.types and (key in self.clean or key in self.pending):
            raw = None  # a cached key was serialized before, so the serde accepts it
        else:
            raw, key = self.keys.locate(key)
        if value is not None:
            value = self.values.checked(value)
        cacheable = key is not MISSING and (value is None or self.values.can_keep(value))
        if cacheable and (value is None or self.values.can_wait(value)):
            if len(self.pending) >= CACHED_ENTRIES and key not in self.pending:
                self.flush_cache()
            self.pending[key] = value
            return
        if raw is None:
            raw = self.keys.to_bytes(key)
        self._below.put(raw, None if value is None else self.values.to_bytes(raw, value))
        if key is not MISSING:
            self.pending.pop(key, None)
            if cacheable:
                self._keep(key, value)
            else:
                self.is_complete = False
                self.clean.pop(key, None)

    def _keep(self, key: Any, value: Any) -> None:
        """Cache an entry that is unchanged in the BytesStore below."""
        if keep(self.clean, key, value):
            self.is_complete = False


def keep(entries: dict[Any, Any], key: Any, value: Any) -> bool:
    """Keep an entry as an object; when there are CACHED_ENTRIES, drop the older half first: return whether it did."""
    is_full = len(entries) >= CACHED_ENTRIES and key not in entries
    if is_full:
        for old in list(islice(entries, CACHED_ENTRIES // 2)):
            del entries[old]
    entries[key] = value
    return is_full


def _portion(rows: Iterator[tuple[bytes, bytes]], most: int) -> list[tuple[bytes, bytes]]:
    """Return the next rows, up to `most`, and only a few after they are _PORTION_BYTES; [] at the end."""
    taken: list[tuple[bytes, bytes]] = []
    size = 0
    while size < _PORTION_BYTES and (few := list(islice(rows, min(_FEW_ROWS, most - len(taken))))):
        taken += few
        size += sum(map(len, chain.from_iterable(few)))
    return taken
