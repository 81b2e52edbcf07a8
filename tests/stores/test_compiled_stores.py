"""Stores with compiled `get`, `put` and `fetch` do what stores without them do, whatever keys and values are."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.serde import Serde
from penstock.store import ValueAndTimestamp
from penstock.store.kinds.key_value import key_value_store
from penstock.store.kinds.window import window_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.kinds import plain
from penstock.stores.memory import MemoryBackend

from ..core.compiled_parts import TIMES, anything, in_python, needs_compiled, outcome, same
from ..rotation import examples
from .windowed_machine import CountingContext

pytestmark = needs_compiled

SERDES = [None, "str", "int", "float", "bytes"]
times = st.integers(0, len(TIMES) - 1).map(TIMES.__getitem__)
starts = st.one_of(st.integers(0, 12), times)
few = st.sampled_from(["a", "b", 1, 2, b"a"])
keys = st.one_of(few, anything)


def _stamped(value: Any, stamp: Any) -> Any:
    return tuple.__new__(ValueAndTimestamp, (value, stamp))


values = st.one_of(st.sampled_from([1, "a", b"a", 2.5]), anything, st.builds(_stamped, anything, times))
single = st.one_of(
    st.tuples(st.just("get"), keys),
    st.tuples(st.just("get"), st.lists(keys, max_size=2)),
    st.tuples(st.just("put"), keys, values),
    st.tuples(st.just("put"), few, st.one_of(values, st.builds(_stamped, values, st.integers(0, 9)))),
    st.tuples(st.just("put keyword"), keys, values),
    st.tuples(st.sampled_from(["flush", "discard", "unflushed"])),
)
windowed = st.one_of(
    st.tuples(st.just("fetch"), keys, starts),
    st.tuples(st.just("fetch"), few, st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.just("put"), keys, values, starts),
    st.tuples(
        st.just("put"), few, st.one_of(values, st.builds(_stamped, values, st.integers(0, 9))), st.integers(0, 12)
    ),
    st.tuples(st.just("put keyword"), keys, values, starts),
    st.tuples(st.just("put"), st.lists(keys, max_size=4)),
    st.tuples(st.sampled_from(["flush", "discard", "unflushed"])),
)


def _store(kind: str, key_serde: Any, value_serde: Any, form: str) -> tuple[Any, CountingContext]:
    context = CountingContext()
    options: dict[str, Any] = {"timestamped": form == "timestamped", "headers": form == "headers"}
    if kind == "window":
        spec: Any = window_store(
            "s", retention="8ms", window_size="5ms", key_serde=key_serde, value_serde=value_serde, **options
        )
        context.fixed_options = spec.traits.fixed_options
    else:
        spec = key_value_store("s", key_serde=key_serde, value_serde=value_serde, **options)
    backend = MemoryBackend.ephemeral(["s"])
    return spec.build(CommitBuffer(backend, "s"), context), context


def _done(store: Any, step: tuple[Any, ...]) -> Any:
    name, *args = step
    if len(args) == 1 and type(args[0]) is list and name in ("get", "put"):
        return outcome(getattr(store, name), *args[0])
    if name == "put keyword":
        names = ("key", "value", "window_start")
        return outcome(store.put, **dict(zip(names, args, strict=False)))
    found = outcome(getattr(store, name), *args)
    if name == "fetch" and found[0] == "returned" and hasattr(found[1], "__next__"):
        return outcome(list, found[1])
    return found


def _state(store: Any, context: CountingContext) -> Any:
    found: list[Any] = [store.calls.take(), context.drops]
    if hasattr(store, "pending"):
        found += [dict(store.pending), dict(store.clean)]
    else:
        found += [[(start, dict(each.pending), dict(each.clean)) for start, each in store._open.items()]]
        found += [[each.start for each in store._changed], store.retention.newest, store.retention.kept_after]
    return found


def _compare(kind: str, key_serde: Any, value_serde: Any, form: str, steps: list[Any]) -> None:
    def tried(way: Any) -> Any:
        with way:
            store, context = _store(kind, key_serde, value_serde, form)
            return [(_done(store, step), _state(store, context)) for step in steps]

    for step, fast, slow in zip(steps, tried(nullcontext()), tried(in_python()), strict=True):
        assert same(fast, slow), step


forms = st.sampled_from(["plain", "timestamped", "headers"])


@settings(max_examples=examples(400))
@given(st.sampled_from(SERDES), st.sampled_from(SERDES), forms, st.lists(single, max_size=14))
def test_key_value_stores(key_serde: Any, value_serde: Any, form: str, steps: list[Any]) -> None:
    _compare("key-value", key_serde, value_serde, form, steps)


@settings(max_examples=examples(400))
@given(st.sampled_from(SERDES), st.sampled_from(SERDES), forms, st.lists(windowed, max_size=14))
def test_window_stores(key_serde: Any, value_serde: Any, form: str, steps: list[Any]) -> None:
    _compare("window", key_serde, value_serde, form, steps)


class ReEnters(Serde[Any]):
    """Writes text; while it does, it puts into the store, drops what that has, or raises."""

    checked_types = immutable_types = frozenset({str})
    act = ""
    store: Any = None

    def serialize(self, value: Any) -> bytes:
        act = type(self).act
        if act not in ("raise", "wrong"):  # these are so each time: compiled code lets Python try again
            type(self).act = ""
        if act == "put":
            self.store.put("a", "inner")
        elif act == "get":
            self.store.get("b")
        elif act == "discard":
            self.store.discard()
        elif act == "flush":
            self.store.flush()
        elif act == "raise":
            raise ArithmeticError("as asked")
        elif act == "exit":
            raise KeyboardInterrupt
        elif act == "wrong":
            return "no bytes"  # type: ignore[return-value]
        return str(value).encode()

    def deserialize(self, data: bytes) -> Any:
        self.serialize("")
        return data.decode()


ACTS = ["", "put", "get", "discard", "flush", "raise", "exit", "wrong"]


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(ACTS),
            st.sampled_from([("get", "a"), ("get", "b"), ("put", "a", "1"), ("put", "b", "x" * 300), ("put", "c", "2"),
                             ("flush",), ("discard",)]),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_serdes_that_use_the_store(steps: list[Any]) -> None:
    def tried(way: Any) -> Any:
        with way:
            serde = ReEnters()
            store, context = _store("key-value", serde, serde, "plain")
            ReEnters.store, found = store, []
            for act, step in steps:
                ReEnters.act = act
                done = _done(store, step)
                ReEnters.act = ""
                found.append((done, _state(store, context)))
            return found

    fast, slow = tried(nullcontext()), tried(in_python())
    for step, one, other in zip(steps, fast, slow, strict=True):
        assert same(one, other), step


class Watched:
    """A value that uses the store when it is dropped."""

    store: Any = None

    def __del__(self) -> None:
        if self.store is not None:
            self.store.put("b", 1.5)
            self.store.get("a")


def test_a_value_that_uses_the_store_when_it_is_replaced() -> None:
    def tried(way: Any) -> Any:
        class OfFloats(Serde[Any]):
            immutable_types = frozenset({float, Watched})

            def serialize(self, value: Any) -> bytes:
                return b"w" if isinstance(value, Watched) else str(value).encode()

            def deserialize(self, data: bytes) -> Any:
                return float(data)

        with way:
            store, context = _store("key-value", "str", OfFloats(), "plain")
            Watched.store = store
            for value in (1.5, Watched(), Watched(), 2.5, Watched()):
                store.put("a", value)
            kept = {key: type(value) for key, value in store.pending.items()}
            store.discard()
            Watched.store = None
            return kept, _state(store, context)

    assert same(tried(nullcontext()), tried(in_python()))


@pytest.mark.parametrize("kind", ["key-value", "window"])
def test_stores_with_few_entries_as_objects(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "CACHED_ENTRIES", 6)
    put = [("put", f"k{number % 9}", number, *([number % 7] if kind == "window" else [])) for number in range(60)]
    read = [
        ("fetch", f"k{number % 9}", number % 7) if kind == "window" else ("get", f"k{number % 9}")
        for number in range(60)
    ]
    _compare(kind, "str", "int", "plain", [each for pair in zip(put, read, strict=True) for each in pair])
