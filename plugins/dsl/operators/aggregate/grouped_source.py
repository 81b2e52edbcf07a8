"""Aggregating: how an aggregation of a grouped stream becomes steps, shared by all its forms."""

from __future__ import annotations

from typing import Any

from ...graph.materialized import Materialized
from ...graph.recorder import Recorder
from ...graph.repartition import RepartitionStep, repartition_names
from ...graph.serdes import Default, Serdes
from ...graph.step import Flow, Step
from ..reading import TableSource


class GroupedSource:
    """Records by key, and the repartition topic that brings equal keys together, if there has to be one."""

    def __init__(self, recorder: Recorder, flow: Flow, name: str | None) -> None:
        self.recorder = recorder
        self.flow = flow
        self.name = name
        self._repartition: RepartitionStep | None = None

    @property
    def serdes(self) -> Serdes:
        """The serdes as they are where the records are aggregated: in a topic, an unknown key has the default one."""
        return self.flow.serdes.else_of(Serdes(Default.TOPIC))

    def behind_repartition(self, store: str) -> tuple[Step, frozenset[str]]:
        """Return the step whose records are aggregated, and the sources above it.

        The repartition topic is named after the grouping, else after the store. Without a name each aggregation of the
        stream has its own, as in Kafka Streams.
        """
        if not self.flow.needs_repartition:
            return self.flow.step, self.flow.sources
        how = 'group_by(..., name="NAME"), or a name for the store'
        names = repartition_names(self.recorder.names, self.name or store, how)
        if self._repartition is None or self.name is None:
            self._repartition = RepartitionStep(names, self.flow.serdes)
        self.recorder.add(self._repartition, self.flow.step)
        return self._repartition, frozenset({self._repartition.name})


def table_of(
    source: GroupedSource, step: Step, sources: frozenset[str], serdes: Serdes, table: TableSource, made: Materialized
) -> Any:
    """Return the table that an aggregation makes."""
    flow = Flow(step, serdes, sources)
    return source.recorder.kinds.table(source.recorder, flow, table, made.own_name)
