"""The step of a suppression with its buffer, and how the suppressed table is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from penstock.context import ProcessorContext
from penstock.errors import TopologyError
from penstock.program.serdes import resolve_serde
from penstock.store import StoreBuilder, ValueAndTimestamp
from penstock.store.kinds.key_value import key_value_store

from ...graph.flow import Flow
from ...graph.serdes import Serdes, WindowedKey, key_of_store, value_of_store
from ...graph.step import ProcessorStep, Step
from ...graph.writer import Writer
from ..reading import Get, TableSource, ValueGetter
from .buffered import BufferedSerde
from .suppress import Suppress


def suppress_step(name: str, store: str, table: Flow, options: Mapping[str, Any], *, logged: bool) -> ProcessorStep:
    """Return the step of a Suppress with its buffer, which is named `store`."""
    serdes = table.serdes

    def late(writer: Writer) -> dict[str, Any]:
        state = writer.settings.state_serde
        key, value = key_of_store(serdes.key, writer.settings), value_of_store(serdes.value, writer.settings)
        return {
            "keys": resolve_serde(key, state, f"store {store!r}: key_serde"),
            "values": resolve_serde(value, state, f"store {store!r}: value_serde"),
        }

    def buffer(writer: Writer) -> tuple[StoreBuilder]:
        value = BufferedSerde(late(writer)["values"])
        made = key_value_store(store, key_serde="bytes", value_serde=value, logged=logged)
        return (replace(made, windows=_windows(table.step)) if isinstance(serdes.key, WindowedKey) else made,)

    return ProcessorStep(name, Suppress, {**options, "store": store}, stores=buffer, late=late)


@dataclass(eq=False)
class SuppressedTable(TableSource):
    """A table whose updates are kept back; a key that waits has the value that it had before."""

    buffer: str
    serdes: Serdes
    parent: TableSource

    def getter(self) -> ValueGetter:
        return SuppressedGetter(self.buffer, self.serdes, self.parent.getter())

    def send_old_values(self, *, force: bool) -> bool:
        """Let the table above send them, which it does for the buffer anyway."""
        return self.parent.send_old_values(force=force)


@dataclass(eq=False)
class SuppressedGetter(ValueGetter):
    """Reads a suppressed table: the buffer for a key that waits, else the table above."""

    store: str
    serdes: Serdes
    parent: ValueGetter

    @property
    def stores(self) -> tuple[str, ...]:
        return (self.store, *self.parent.stores)

    def open(self, context: ProcessorContext, *, sent: bool = False) -> Get:
        waiting, get = context.get_store(self.store).get, self.parent.open(context)
        settings: Any = SimpleNamespace(**context.config)
        key_serde = key_of_store(self.serdes.key, settings)
        key_bytes = resolve_serde(key_serde, settings.state_serde, f"store {self.store!r}: key_serde").serialize

        def read(key: Any) -> ValueAndTimestamp | None:
            entry = waiting(key_bytes(key))
            if entry is None:
                return get(key)
            return None if entry.prior is None else ValueAndTimestamp(entry.prior, -1)

        return read


def grace_above(step: Step) -> int:
    """Return how long after its end a window of a table closes (ms). Raises TopologyError if it has none."""
    found = _grace(step)
    if found is None:
        raise TopologyError(
            'suppress: until="window_closes" is for tables of windows, which windowed_by makes; for another table say '
            'how long: suppress(until="10s")'
        )
    return found


def _windows(step: Step) -> str:
    """Return which windows the keys of a table are of; empty if they are of none."""
    return step.window_form or next(filter(None, map(_windows, step.parents)), "")


def _grace(step: Step) -> int | None:
    if step.window_grace_ms is not None:
        return step.window_grace_ms
    return max((each for each in map(_grace, step.parents) if each is not None), default=None)
