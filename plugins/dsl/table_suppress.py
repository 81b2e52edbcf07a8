"""The verb that keeps a table's updates back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.clock import Duration, duration_ms
from penstock.errors import TopologyError

from .graph.step import Flow
from .operators.suppress import (
    SuppressedTable,
    grace_above,
    suppress_step,
)
from .stream_base import K, V
from .table_base import TableBase

if TYPE_CHECKING:
    from .table import KTable

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
        options = {
            "wait_ms": wait_ms,
            "by_window": by_window,
            "drops_tombstones": by_window,
            "max_records": max_records,
            "max_bytes": max_bytes,
            "stops_when_full": full == "stop",
            "idle_ms": None if idle is None else max(1, duration_ms(idle, "suppress: idle")),
        }
        step = suppress_step(step_name, store, self.flow, options, logged=logged)
        self.recorder.add(step, self.flow.step)
        flow = Flow(step, self.flow.serdes, self.flow.sources)
        source = SuppressedTable(store, flow.serdes, self.source)
        made: KTable[K, V] = self.recorder.kinds.table(self.recorder, flow, source, None)
        return made
