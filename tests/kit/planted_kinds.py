"""A right kind of store, and kinds with one wrong line each, which `StateStoreContract` has to find."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from hypothesis import strategies as st

from penstock import BytesStore, RowKeys, StateStore, StoreContext, StoreSpec
from penstock.plugins.testing.contracts.state_store import StateStoreContract
from penstock.plugins.testing.strategies import keys


@dataclass(frozen=True)
class TagsSpec(StoreSpec):
    """Declares sets of tags by key; `variant` names the class of this module that keeps them."""

    row_keys: ClassVar[RowKeys | None] = RowKeys(bytes, lambda spec: "str")

    variant: str = "Tags"

    def build(self, bytes_store: BytesStore, context: StoreContext) -> StateStore:
        return globals()[self.variant](bytes_store, context)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class OtherSerdeSpec(TagsSpec):
    """Its keys are no numbers."""

    row_keys = RowKeys(bytes, lambda spec: "int")


@dataclass(frozen=True)
class TextKeysSpec(TagsSpec):
    """Keys of rows are bytes."""

    row_keys = RowKeys(bytes.decode, lambda spec: "str")  # type: ignore[arg-type]


class ReadTags(StateStore, reads_only=True):
    """What tasks may call of a global store."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        self.name = below.name
        self._below = below
        self._context = context
        self._waiting: dict[str, list[str]] = {}

    def get(self, key: str) -> list[str]:
        if key in self._waiting:
            return list(self._waiting[key])
        found = self._below.get(key.encode())
        return [] if found is None else self._read(found)

    def _read(self, found: bytes) -> list[str]:
        return list(json.loads(found))

    def keys(self) -> Iterator[str]:
        present = {key.decode() for key, _ in self._below.range()}
        changed = {key for key, tags in self._waiting.items() if tags}
        gone = {key for key, tags in self._waiting.items() if not tags}
        yield from sorted((present | changed) - gone)


class Tags(ReadTags):
    """Right: keeps changes as objects until `flush`."""

    def add(self, key: str, tag: str) -> bool:
        tags = self.get(key)
        if tag in tags:
            return False
        self._waiting[key] = sorted([*tags, tag])
        return True

    def clear(self, key: str) -> None:
        self._waiting[key] = []

    def flush(self) -> None:
        for key, tags in self._waiting.items():
            self._below.put(key.encode(), self._written(tags))
        self._waiting.clear()

    def _written(self, tags: list[str]) -> bytes | None:
        return json.dumps(tags).encode() if tags else None

    def unflushed(self) -> int:
        return len(self._waiting)

    def discard(self) -> None:
        self._waiting.clear()


class KeepsAnAttribute(Tags):
    """How many were added is known until the store is opened again."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        super().__init__(below, context)
        self._added = 0

    def add(self, key: str, tag: str) -> bool:
        self._added += super().add(key, tag)
        return self._added % 2 == 1


class KeepsItInTheClass(Tags):
    known: ClassVar[dict[str, list[str]]] = {}

    def get(self, key: str) -> list[str]:
        return self.known.setdefault(key, super().get(key))


class NeverDiscards(Tags):
    def discard(self) -> None:
        pass


class FlushesSome(Tags):
    def flush(self) -> None:
        few = dict(list(self._waiting.items())[:2])
        self._waiting = few
        super().flush()


class FlushesAgain(Tags):
    def flush(self) -> None:
        self.written = getattr(self, "written", {}) | self._waiting
        self._waiting = dict(self.written)
        super().flush()


class NeverCountsDown(Tags):
    most = 0

    def unflushed(self) -> int:
        self.most = max(self.most, super().unflushed())
        return self.most


class HandsOutItsOwn(Tags):
    def get(self, key: str) -> list[str]:
        return self._waiting.setdefault(key, super().get(key)) if super().get(key) else []


class WritesInTheOrderOfHashes(Tags):
    def _written(self, tags: list[str]) -> bytes | None:
        return json.dumps(list(set(tags))).encode() if tags else None

    def _read(self, found: bytes) -> list[str]:
        return sorted(json.loads(found))


class WritesTheTime(Tags):
    def _written(self, tags: list[str]) -> bytes | None:
        return json.dumps([*tags, time.time_ns()]).encode() if tags else None

    def _read(self, found: bytes) -> list[str]:
        return list(json.loads(found)[:-1])


class WritesWhereItReads(Tags):
    def get(self, key: str) -> list[str]:
        found = super().get(key)
        self._below.put(b"last read", key.encode())
        return found

    def keys(self) -> Iterator[str]:
        return filter("last read".__ne__, super().keys())


class BreaksWhereItWrites(Tags):
    """Its iterator looks at what waits, step by step."""

    def keys(self) -> Iterator[str]:
        for key in sorted({key.decode() for key, _ in self._below.range()}):
            if key not in self._waiting:
                yield key


class KeepsWhatItRead(Tags):
    """Until it is opened again, also what was read before it was discarded."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        super().__init__(below, context)
        self._known: dict[str, list[str]] = {}

    def get(self, key: str) -> list[str]:
        return list(self._known.setdefault(key, super().get(key)))

    def add(self, key: str, tag: str) -> bool:
        added = super().add(key, tag)
        self._known.pop(key)
        return added

    def clear(self, key: str) -> None:
        super().clear(key)
        self._known.pop(key, None)


class PlainTags(dict[str, set[str]]):
    """What tags answer."""

    def add(self, key: str, tag: str) -> bool:
        is_new = tag not in self.get(key)
        self.setdefault(key, set()).add(tag)
        return is_new

    def clear(self, key: str) -> None:  # type: ignore[override]
        self.pop(key, None)

    def get(self, key: str) -> list[str]:  # type: ignore[override]
        return sorted(super().get(key, ()))

    def keys(self) -> list[str]:  # type: ignore[override]
        return sorted(self)


class TestTags(StateStoreContract):
    """The right one."""

    spec = TagsSpec("tags")
    reference = PlainTags
    calls = st.one_of(
        st.tuples(st.just("add"), st.sampled_from(["a", "b", "é"]), st.sampled_from(["x", "yy", "zzz", "w"])),
        st.tuples(st.just("clear"), st.sampled_from(["a", "b"])),
        st.tuples(st.just("get"), st.sampled_from(["a", "b", "é"])),
        st.tuples(st.just("keys")),
    )


# ---------------------------------------------------------------- what varies around a store


class KeepsWhatItFlushed(Tags):
    """Also where the commit fails that it was flushed for."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        super().__init__(below, context)
        self._known: dict[str, list[str]] = {}

    def get(self, key: str) -> list[str]:
        return list(self._known[key]) if key in self._known and key not in self._waiting else super().get(key)

    def flush(self) -> None:
        self._known.update(self._waiting)
        super().flush()


class KnowsWhatIsNotThere(Tags):
    """As long as it does not put it itself."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        super().__init__(below, context)
        self._absent: set[str] = set()

    def get(self, key: str) -> list[str]:
        if key in self._absent and key not in self._waiting:
            return []
        found = super().get(key)
        if not found and key not in self._waiting:
            self._absent.add(key)
        return found

    def add(self, key: str, tag: str) -> bool:
        added = super().add(key, tag)
        self._absent.discard(key)
        return added


class CountsInAByte(Tags):
    """How many tags a row has."""

    def add(self, key: str, tag: str) -> bool:
        self._waiting[key] = [*self.get(key), tag]
        return True

    def _written(self, tags: list[str]) -> bytes | None:
        return bytes([len(tags) % 128]) + "\n".join(tags).encode() if tags else None

    def _read(self, found: bytes) -> list[str]:
        return found[1:].decode().split("\n")[: found[0]]


class WritesTheLocalDay(Tags):
    def _written(self, tags: list[str]) -> bytes | None:
        hour = datetime.fromtimestamp(self._context.wall_clock() / 1000).hour
        return json.dumps([*tags, hour]).encode() if tags else None

    def _read(self, found: bytes) -> list[str]:
        return list(json.loads(found)[:-1])


class RoundsByTheContext(Tags):
    def _written(self, tags: list[str]) -> bytes | None:
        return json.dumps([*tags, str(Decimal(len(tags)) / 7)]).encode() if tags else None

    def _read(self, found: bytes) -> list[str]:
        return list(json.loads(found)[:-1])


class AnswersInTheOrderOfHashes(Tags):
    def keys(self) -> Iterator[str]:
        yield from set(super().keys())


class RowsOfText(Tags):
    """Which a changelog would give back as text, or refuse."""

    def flush(self) -> None:
        for key, tags in self._waiting.items():
            self._below.put(key, json.dumps(tags) if tags else None)  # type: ignore[arg-type]
        self._waiting.clear()

    def get(self, key: str) -> list[str]:
        return list(self._waiting[key]) if key in self._waiting else json.loads(self._below.get(key) or "[]")  # type: ignore[arg-type]

    def keys(self) -> Iterator[str]:
        return iter(())


class RowsThatChange(Tags):
    """A buffer that it fills again."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        super().__init__(below, context)
        self._buffer = bytearray()

    def _written(self, tags: list[str]) -> bytes | None:
        self._buffer[:] = json.dumps(tags).encode()
        return self._buffer if tags else None  # type: ignore[return-value]


class ForgetsWhenItExpires(Tags):
    """Tags of a key go a day after the last one, if the store was not opened again."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        super().__init__(below, context)
        self._until: dict[str, int] = {}

    def get(self, key: str) -> list[str]:
        return [] if self._context.stream_time() > self._until.get(key, 2**63) else super().get(key)

    def add(self, key: str, tag: str) -> bool:
        added = super().add(key, tag)
        self._until[key] = self._context.stream_time() + 86_400_000
        return added


class TimesInFourBytes(Tags):
    """Seconds would do until 2106; these are milliseconds."""

    def _written(self, tags: list[str]) -> bytes | None:
        return self._context.stream_time().to_bytes(4, "big") + json.dumps(tags).encode() if tags else None

    def _read(self, found: bytes) -> list[str]:
        return list(json.loads(found[4:]))


class IteratesOverItsDict(Tags):
    """To see at its end whether something waits."""

    def keys(self) -> Iterator[str]:
        waiting = iter(self._waiting)
        yield from super().keys()
        any(not key for key in waiting)


class BuildsNothingSpec(StoreSpec):
    """Forgets to return its store."""

    def build(self, bytes_store: BytesStore, context: StoreContext) -> Any:
        Tags(bytes_store, context)


# ---------------------------------------------------------------- what only a reference shows


class NumberedSpec(TagsSpec):
    """Declares texts by key in the order in which they came; `variant`: the class of this module that keeps them."""

    row_keys = None


class Numbered(StateStore):
    """Right: a row for each text, whose key is the length of its key, the key, and the number of the text."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        self.name = below.name
        self._below = below
        self._context = context

    def push(self, key: str, text: str) -> None:
        start = self._start(key)
        last = next(self._below.range(start, start + b"\xff", reverse=True), None)
        number = 0 if last is None else int(last[0][len(start) :]) + 1
        self._below.put(start + self._digits(number), text.encode())

    def get(self, key: str) -> list[str]:
        start = self._start(key)
        return [text.decode() for _, text in self._below.range(start, start + b"\xff")]

    def _start(self, key: str) -> bytes:
        return b"%d:" % len(key.encode()) + key.encode()

    def _digits(self, number: int) -> bytes:
        return b"%06d" % number


class TenBeforeTwo(Numbered):
    def _digits(self, number: int) -> bytes:
        return b"%d" % number


class JoinsWithAColon(Numbered):
    """The key "" has the texts of all keys that begin with one."""

    def _start(self, key: str) -> bytes:
        return key.encode() + b":"


class KeepsOneAfterMonths(Numbered):
    def _digits(self, number: int) -> bytes:
        return b"%06d" % (number if self._context.stream_time() < 86_400_000 * 300 else 0)


class PlainNumbered(dict[str, list[str]]):
    """What they answer."""

    def push(self, key: str, text: str) -> None:
        self.setdefault(key, []).append(text)

    def get(self, key: str) -> list[str]:  # type: ignore[override]
        return super().get(key, [])


class TestNumbered(StateStoreContract):
    """The right one."""

    spec = NumberedSpec("numbered", variant="Numbered")
    calls = st.tuples(st.just("push"), keys("str"), st.text(max_size=2)) | st.tuples(st.just("get"), keys("str"))
    reference = PlainNumbered
    examples = 4
