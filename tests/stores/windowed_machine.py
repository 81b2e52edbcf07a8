"""What tests of window and session stores share: keys and values, and a store that is committed, lost and re-opened."""

from __future__ import annotations

import copy
import tempfile
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from penstock.serde import Serde
from penstock.store import StateStore, StoreBackend, StoreBackendFactory, ValueAndTimestamp, ValueTimestampHeaders
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.lmdb import LmdbBackend
from penstock.stores.memory import MemoryBackend

from ..rotation import examples
from .context import SERDES, TestContext

BACKENDS: dict[str, StoreBackendFactory] = {"memory": MemoryBackend, "lmdb": LmdbBackend}

KEYS: dict[str | None, st.SearchStrategy[Any]] = {
    None: st.sampled_from(["", "a", "a\0", "ab", b"a", b"", 0, 1, True, 1.0, (1, "a"), 2**40, "x" * 300]),
    "str": st.sampled_from(["", "\0", "a", "a\0", "a\0\0", "a\0b", "ab", "b", "ä", "x" * 300]),
    "int": st.sampled_from([0, 1, 255, 256, -1, 2**63 - 1, -(2**63)]),
    "bytes": st.sampled_from(
        [
            b"",
            b"\0",
            b"\0\0",
            b"\0\xff",
            b"a",
            b"a\0",
            b"a\0\0",
            b"a\0\1",
            b"a\0\xff",
            b"a\1",
            b"\xff",
            b"\xff" * 9,
            b"x" * 300,
        ]
    ),
}
"""By the name of the serde: keys that are the beginning of others, keys with NULs, and ones too long to be kept."""

VALUES: dict[str | None, st.SearchStrategy[Any]] = {
    None: st.sampled_from([0, 1, 2, True, 1.5, "", "text", "long" * 100, b"", b"bytes", [1, [2]], {"a": [1]}, (1, 2)]),
    "str": st.sampled_from(["", "a", "long" * 100]),
    "int": st.sampled_from([0, 1, 2, -1, 2**63 - 1]),
    "bytes": st.sampled_from([b"", b"a", b"long" * 100, bytearray(b"a")]),
}
"""By the name of the serde: values that a store may keep as objects, and values that it may not."""


class CountingContext(TestContext):
    """A StoreContext that counts what the store drops."""

    def __init__(self) -> None:
        super().__init__()
        self.drops = 0

    def dropped(self, reason: str, count: int = 1) -> None:
        self.drops += count


class CommittedStore(RuleBasedStateMachine):
    """A store over a backend, beside a model: `model` is what the store has, `committed` what the last commit left.

    Models are values that `copy.deepcopy` copies.
    """

    key_serde: ClassVar[str | None]
    value_serde: ClassVar[str | None]
    backend_name: ClassVar[str]
    timestamped: ClassVar[bool | str] = False
    """"headers": values have headers as well."""
    model: Any
    drawn_keys: st.SearchStrategy[Any]

    def spec(self) -> Any:
        """Return the declaration of the store."""
        raise NotImplementedError

    def new_model(self) -> Any:
        """Return the model of an empty store."""
        raise NotImplementedError

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.drawn_keys = KEYS[self.key_serde]
        if data.draw(st.booleans(), "few keys"):  # so that calls of one key follow each other
            too_long = st.just({"bytes": b"x" * 300, "int": 0}.get(self.key_serde or "", "x" * 300))
            self.drawn_keys = st.sampled_from(data.draw(st.tuples(self.drawn_keys, self.drawn_keys | too_long), "keys"))
        self.temporary = tempfile.TemporaryDirectory()
        self.context = CountingContext()
        self.context.fixed_options = self.spec().traits.fixed_options
        self.keys: Serde[Any] = SERDES[self.key_serde]()
        self.model, self.committed = self.new_model(), self.new_model()
        self.open()

    def open(self) -> None:
        self.backend: StoreBackend = BACKENDS[self.backend_name](self.directory, ["s"])
        self.buffer = CommitBuffer(self.backend, "s")
        self.store: Any = self.spec().build(self.buffer, self.context)
        assert isinstance(self.store, StateStore)

    @property
    def directory(self) -> Any:
        from pathlib import Path

        return Path(self.temporary.name)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.backend.close()
            self.temporary.cleanup()

    # -- what tests draw

    def drawn_key(self, data: st.DataObject) -> tuple[Any, bytes]:
        key = data.draw(self.drawn_keys, "key")
        return key, self.keys.serialize(key)

    def drawn_ends(self, data: st.DataObject) -> tuple[Any, bytes | None, Any, bytes | None]:
        """Return two ends of a range of keys, each also as bytes; None is an open end."""
        low = (None, None) if data.draw(st.booleans(), "open start") else self.drawn_key(data)
        high = (None, None) if data.draw(st.booleans(), "open end") else self.drawn_key(data)
        return (*low, *high)

    def drawn_value(self, data: st.DataObject) -> Any:
        values = VALUES[self.value_serde]
        if self.timestamped == "headers":
            headers = st.sampled_from([(), (("a", b"x"), ("a", None))])
            values = st.builds(ValueTimestampHeaders, values, st.sampled_from([0, 5, 2**63 - 1]), headers)
        elif self.timestamped:
            values = st.builds(ValueAndTimestamp, values, st.sampled_from([0, 5, 2**63 - 1]))
        return copy.deepcopy(data.draw(values | st.none(), "value"))

    # -- comparing

    def seen_key(self, raw: bytes) -> Any:
        return self.keys.deserialize(raw)

    @staticmethod
    def check(found: Any, expected: Any) -> None:
        """Compare values or lists of entries, types included."""
        assert repr(plain(found)) == repr(plain(expected))

    @staticmethod
    def spoil(value: Any) -> None:
        """Change a value in place: nothing in the store may notice."""
        if isinstance(value, ValueAndTimestamp | ValueTimestampHeaders):
            value = value.value
        if isinstance(value, list):
            value.append("spoiled")
        elif isinstance(value, dict):
            value["spoiled"] = True
        elif isinstance(value, bytearray):
            value += b"spoiled"

    # -- the commit

    @rule()
    def flush(self) -> None:
        self.store.flush()

    @rule()
    def commit(self) -> None:
        self.store.flush()
        version = self.backend.version()
        changes = self.buffer.local_changes(self.buffer.changes())
        self.backend.write({"s": changes} if changes else {}, version, (version or "") + "x")
        self.buffer.clear()
        self.committed = copy.deepcopy(self.model)

    @rule()
    def fail(self) -> None:
        """A commit that failed: the task drops what the store holds, and goes on from the last commit."""
        self.store.discard()
        self.buffer.clear()
        self.lose()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.backend.close()
        self.lose()
        self.open()

    def lose(self) -> None:
        self.model = copy.deepcopy(self.committed)


def plain(value: Any) -> Any:
    """Return `value` as the serdes give it back: a bytearray as bytes."""
    if isinstance(value, bytearray):
        return bytes(value)
    if type(value) is list:
        return [plain(each) for each in value]
    if type(value) is tuple:
        return tuple(plain(each) for each in value)
    if isinstance(value, tuple):
        return type(value)(*map(plain, value))
    return value


def run(machine: type[CommittedStore], name: str, **attributes: Any) -> None:
    """Run a machine with class attributes of its own; fewer examples where each one has to open files."""
    run_state_machine_as_test(
        type(name, (machine,), attributes),
        settings=settings(
            max_examples=examples(30 if attributes["backend_name"] == "memory" else 8),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
