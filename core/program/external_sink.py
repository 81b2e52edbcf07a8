"""ExternalSink: the node whose records a task writes to a target outside of the log, just before it commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import PenstockError, StoreError, TopologyError
from ..hooks import registry
from ..operator import Operator, Run
from ..processor import Processor, ProcessorContext
from ..sink import AnySink, Sink, StagedSink
from ..store.division import RowKeys
from ..store.kinds.key_value import KeyValueStoreSpec
from .messages import Advice
from .nodes import ProcessorNode, SourceNode, Subtopology


class ExternalSink(Operator):
    """Collects the records of one source for a target. `Topology.add_external_sink` adds it.

    The task sets `collect` before `bind`.
    """

    def __init__(self, sink: AnySink) -> None:
        self.sink = sink
        self.collect: Run | None = None

    def bind(self, context: ProcessorContext) -> Run:
        if self.collect is None:
            raise TopologyError(
                f"external sink {context.node!r}: {self.sink} gets records of a topic of a log, and there is none here"
            )
        return self.collect


def sink_of(where: str, sink: AnySink | str, options: Mapping[str, Any]) -> AnySink:
    """Return the sink: itself, or what the installed factory of this name makes with `options`."""
    if isinstance(sink, str):
        try:
            made = registry().load("sink", sink)(**options)
        except TypeError as error:
            raise TopologyError(f"{where}: sink {sink!r} with options {sorted(options)}: {error}") from error
        except PenstockError as error:
            raise type(error)(f"{where}: {error}") from error
        what = f"the factory of sink {sink!r} made {made!r}"
    else:
        made, what = sink, f"found {sink!r}"
        if options:
            raise TopologyError(
                f"{where}: options {sorted(options)} are for a sink that is named; {made} is one already"
            )
    if not isinstance(made, (Sink, StagedSink)):
        raise TopologyError(f"{where}: expected a Sink, or the name of an installed one; {what}")
    return made


_STATE = b"state"


def _staged_key(row: bytes) -> bytes | None:
    """Return None for the row of the task's state. Raises StoreError for another one: it is of no record's key."""
    if row == _STATE:
        return None
    raise StoreError(
        "records wait there for a target that gets them later: let it get all before, for Parquet files by a start "
        'with max_age="0s"'
    )


def _one_of(one: bytes, other: bytes) -> bytes:
    return one


@dataclass(frozen=True)
class StagingStoreSpec(KeyValueStoreSpec):
    """The store of a StagedSink: each new task of a resharded application gets a copy of its row `state`."""

    row_keys = RowKeys(_staged_key, lambda spec: "str", _one_of)


def staging_store(name: str, sink: AnySink) -> KeyValueStoreSpec | None:
    """Return the store of an external sink, in which records wait for a target without transactions, or None."""
    return StagingStoreSpec(staging_name(name), "str", "bytes") if isinstance(sink, StagedSink) else None


def staging_name(name: str) -> str:
    """Return the name of this store."""
    return f"{name}-staged"


def external_sink_node(name: str, sink: AnySink, source: str, stores: tuple[str, ...], advice: Advice) -> ProcessorNode:
    """Return the node that writes the records of a source to a target."""
    supplier: Callable[..., Processor] = ExternalSink
    return ProcessorNode(name, supplier, (source,), stores, {"sink": sink}, (), advice)


def is_external_sink(node: object) -> bool:
    """Return whether a node is an external sink."""
    supplier: object = node.supplier if isinstance(node, ProcessorNode) else None
    return supplier is ExternalSink


def external_sinks(subtopology: Subtopology) -> Mapping[str, tuple[SourceNode, AnySink]]:
    """Return the external sinks of a sub-topology by node: the source whose records each gets, and the target."""
    sources = {source.name: source for source in subtopology.sources}
    return {
        node.name: (sources[node.parents[0]], node.options["sink"])
        for node in subtopology.nodes
        if isinstance(node, ProcessorNode) and is_external_sink(node)
    }
