"""The verb that keeps a table's updates back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from penstock.clock import Duration, duration_ms
from penstock.context import ProcessorContext
from penstock.errors import TopologyError
from penstock.program.serdes import resolve_serde
from penstock.store import ValueAndTimestamp
from penstock.store_kinds.key_value import key_value_store

from ..graph.step import ProcessorStep, Step
from ..graph.writer import Writer
from ..nodes.suppress import Suppress
from ..serdes import Serdes, WindowedKey, key_of_store, value_of_store
from ..streams.base import Flow, K, V
from .base import TableBase
from .buffered import BufferedSerde
from .values import Get, TableSource, ValueGetter

if TYPE_CHECKING:
    from .ktable import KTable

_SUPPRESS = "KTABLE-SUPPRESS-"
_FULL = ("emit_early", "stop")


class Suppression(TableBase[K, V]):
    """Keeping updates back."""

    def suppress(
        self,
        until: Duration,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        when_full: str | None = None,
        idle: Duration | None = None,
        name: str | None = None,
        logged: bool = True,
    ) -> KTable[K, V]:
        """Keep updates back, and let the last one of each key go.

        `until="window_closes"` is for tables of windows: each window leaves once, when stream time has reached its end
        and the grace; deletions do not leave. With `until` a duration, a key leaves so long after the timestamp of the
        first update that is kept; more updates of the key do not change its turn. Stream time is the highest timestamp
        of the updates that this verb got. Updates leave by time, then by the bytes of their keys.

        The buffer is a store, `NAME-store`. `max_records` and `max_bytes` (about what keys, values and headers take)
        bound it. When it is full, `when_full="emit_early"` lets the oldest go and `"stop"` fails; a window cannot go
        before it closes, so there it is "stop".
        Stream time moves only with updates. `idle="30s"` lets it go on with the wall clock after so long without any,
        as `windowed_by(..., idle=)` does: what is decided is committed with the task, so a crash changes nothing, but
        to process everything again may have other results. An update of a window that has left already is then dropped
        and counted (`late`).
        Semantics: Kafka Streams' `suppress` (KIP-328), which has no `idle`.

        ::

            updates   a=1   a=2   b=1         a=3           until="10s"; the numbers above are seconds
            time       0     4     6    10     12    16
            leaves                      a=2         b=1     then a=3 at 22
        """
        if self.source.is_versioned:
            raise TopologyError(
                "suppress: the table keeps versions, and some of its updates are older than its latest ones, which the "
                "buffer cannot keep apart. Give it a store without versions first: "
                'table.map_values(lambda value: value, store="NAME").suppress(...)'
            )
        by_window = until == "window_closes"
        wait_ms = grace_above(self.flow.step) if by_window else duration_ms(until, "suppress: until")
        full = ("stop" if by_window else "emit_early") if when_full is None else when_full
        if full not in _FULL:
            raise TopologyError(f'suppress: when_full is "emit_early" or "stop", found {when_full!r}')
        if by_window and full == "emit_early":
            raise TopologyError(
                'suppress: a window may not leave before it closes, so when_full="emit_early" does not go with '
                'until="window_closes"; write when_full="stop", or until=DURATION'
            )
        if when_full is not None and max_records is None and max_bytes is None:
            raise TopologyError("suppress: when_full= needs max_records= or max_bytes=; without them it is never full")
        names = self.recorder.names
        step_name = names.unless_given(name, _SUPPRESS)
        store = names.store(_SUPPRESS, 'suppress(..., name="NAME")') if name is None else f"{step_name}-store"
        self.source.send_old_values(force=True)
        step = SuppressStep(step_name, store, self.flow.serdes, logged=logged)
        step.options |= {
            "wait_ms": wait_ms,
            "by_window": by_window,
            "drops_tombstones": by_window,
            "max_records": max_records,
            "max_bytes": max_bytes,
            "stops_when_full": full == "stop",
            "idle_ms": None if idle is None else max(1, duration_ms(idle, "suppress: idle")),
        }
        self.recorder.add(step, self.flow.step)
        flow = Flow(step, self.flow.serdes, self.flow.sources)
        made: KTable[K, V] = self.recorder.kinds.table(self.recorder, flow, SuppressedTable(step, self.source), None)
        return made


class SuppressStep(ProcessorStep):
    """Writes a Suppress with its buffer."""

    def __init__(self, name: str, store: str, serdes: Serdes, *, logged: bool) -> None:
        super().__init__(name, Suppress)
        self.store = store
        self.saved_as = (store,)
        self.serdes = serdes
        self._logged = logged

    def write(self, writer: Writer) -> None:
        """Add the processor and its buffer."""
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
        """Return how the table is read."""
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
        """The buffer, and the stores of the table above."""
        return (self._store, *self._parent.stores)

    def open(self, context: ProcessorContext) -> Get:
        """Return the function that reads the table."""
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
