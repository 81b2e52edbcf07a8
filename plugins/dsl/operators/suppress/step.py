"""The step of a suppression with its buffer, and how the suppressed table is read."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from penstock.context import ProcessorContext
from penstock.errors import TopologyError
from penstock.program.serdes import resolve_serde
from penstock.store import ValueAndTimestamp
from penstock.store.kinds.key_value import key_value_store

from ...graph.serdes import Serdes, WindowedKey, key_of_store, value_of_store
from ...graph.step import ProcessorStep, Step
from ...graph.writer import Writer
from ..reading import Get, TableSource, ValueGetter
from .buffered import BufferedSerde
from .suppress import Suppress


class SuppressStep(ProcessorStep):
    """Writes a Suppress with its buffer."""

    def __init__(self, name: str, store: str, serdes: Serdes, *, logged: bool) -> None:
        super().__init__(name, Suppress)
        self.store = store
        self.serdes = serdes
        self._logged = logged

    def write(self, writer: Writer) -> None:
        settings = writer.settings
        key = key_of_store(self.serdes.key, settings) or settings.state_serde
        value = value_of_store(self.serdes.value, settings) or settings.state_serde
        buffer = key_value_store(self.store, key_serde="bytes", value_serde=BufferedSerde(value), logged=self._logged)
        if isinstance(self.serdes.key, WindowedKey):
            buffer = replace(buffer, windows=_windows(self))
        options = {**self.options, "store": self.store, "key_serde": key, "value_serde": value}
        self.add_to(writer, (buffer,), options)


class SuppressedTable(TableSource):
    """A table whose updates are kept back; a key that waits has the value that it had before."""

    def __init__(self, step: SuppressStep, parent: TableSource) -> None:
        self._step = step
        self._parent = parent

    def getter(self) -> ValueGetter:
        return SuppressedGetter(self._step.store, self._step.serdes, self._parent.getter())

    def send_old_values(self, *, force: bool) -> bool:
        """Let the table above send them, which it does for the buffer anyway."""
        return self._parent.send_old_values(force=force)


class SuppressedGetter(ValueGetter):
    """Reads a suppressed table: the buffer for a key that waits, else the table above."""

    def __init__(self, store: str, serdes: Serdes, parent: ValueGetter) -> None:
        self._store = store
        self._serdes = serdes
        self._parent = parent

    @property
    def stores(self) -> tuple[str, ...]:
        return (self._store, *self._parent.stores)

    def open(self, context: ProcessorContext) -> Get:
        waiting, get = context.get_store(self._store).get, self._parent.open(context)
        settings: Any = SimpleNamespace(**context.config)
        key_serde = key_of_store(self._serdes.key, settings)
        key_bytes = resolve_serde(key_serde, settings.state_serde, f"store {self._store!r}: key_serde").serialize

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
    windows: str = getattr(step, "windows", "")
    return windows or next(filter(None, map(_windows, step.parents)), "")


def _grace(step: Step) -> int | None:
    grace: int | None = getattr(step, "window_grace_ms", None)
    if grace is not None:
        return grace
    return max((each for each in map(_grace, step.parents) if each is not None), default=None)
