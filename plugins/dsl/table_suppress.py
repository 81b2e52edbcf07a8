"""The verb that keeps a table's updates back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.clock import Duration
from penstock.errors import TopologyError

from .graph.step import Flow
from .operators.suppress import SuppressedTable, suppress_options, suppress_step
from .stream_base import K, V
from .table_base import TableBase

if TYPE_CHECKING:
    from .table import KTable

_SUPPRESS = "KTABLE-SUPPRESS-"


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
        options = suppress_options(self.flow.step, until, max_records, max_bytes, when_full, idle)
        names = self.recorder.names
        step_name = names.unless_given(name, _SUPPRESS)
        store = names.store(_SUPPRESS, 'suppress(..., name="NAME")') if name is None else f"{step_name}-store"
        self.source.send_old_values(force=True)
        step = suppress_step(step_name, store, self.flow, options, logged=logged)
        self.recorder.add(step, self.flow.step)
        flow = Flow(step, self.flow.serdes, self.flow.sources)
        return self._table_of(flow, SuppressedTable(store, flow.serdes, self.source), None)
