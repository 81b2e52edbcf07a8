"""The keyword arguments of verbs: of their stores, their topics and joins, and whether functions get the key."""

from __future__ import annotations

from typing import Literal, Required, TypedDict

from penstock import CallOrder, Duration, Handler, Partitioner, PunctuationType, StoreSpec, WindowStoreSpec
from penstock.program.serdes import SerdeLike
from penstock.support.topic_config import TopicConfig

StoreLike = str | StoreSpec
"""The name of a store, or a declared store."""

OptionOfStore = SerdeLike | Duration | PunctuationType | TopicConfig | bool
"""The values of options of stores."""


class SerdeOptions(TypedDict, total=False):
    """`key_serde` and `value_serde`: serdes, or names of installed ones."""

    key_serde: SerdeLike
    value_serde: SerdeLike


class KeepingOptions(TypedDict, total=False):
    """How a store is kept.

    `backend`: an installed store backend. `logged`: whether changes go to the changelog. `topic_config`: settings by
    Kafka's names with which the store's changelog topic is created.
    """

    backend: str | None
    logged: bool
    topic_config: TopicConfig


class TableOptions(KeepingOptions, total=False):
    """The store of a table from a topic.

    `cached`: whether of several updates of a key between two commits only the last one goes on
    (`statestore_cache_max_bytes`). `ttl`, `ttl_clock`: see `key_value_store`.
    """

    cached: bool
    ttl: Duration | None
    ttl_clock: PunctuationType


class StoreOptions(TableOptions, SerdeOptions):
    """The store of a verb, and its serdes."""


class StateOptions(SerdeOptions, KeepingOptions, total=False):
    """The store of a state for each key. `ttl`, `ttl_clock`: see `key_value_store`."""

    ttl: Duration | None
    ttl_clock: PunctuationType


class WindowOptions(SerdeOptions, KeepingOptions, total=False):
    """A store of windows. `retention`: how long windows are kept; at least their length and grace."""

    cached: bool
    retention: Duration


class ForeignKeyOptions(StoreOptions, total=False):
    """A join of tables, by key or by foreign key, for which the partitioners are."""

    partitioner: Partitioner | None
    other_partitioner: Partitioner | None


class StreamJoinOptions(SerdeOptions, KeepingOptions, total=False):
    """A join of two streams, beside its window and its name.

    The serdes, with `other_value_serde` of the right values, are for stores and repartition topics, where they are not
    known. `retention`: how long the stores keep records; at least the window and its grace. `this_store`,
    `other_store`: declared stores for the left and the right side, `window_store(NAME, ..., retain_duplicates=True)`.
    `emit_interval`: how often at most, in wall-clock time, a left or outer join looks for windows that have closed;
    else whenever time moves. It looks only when a record comes.
    """

    other_value_serde: SerdeLike
    retention: Duration
    this_store: WindowStoreSpec
    other_store: WindowStoreSpec
    emit_interval: Duration


class TableJoinOptions(SerdeOptions, KeepingOptions, total=False):
    """A join of a stream with a table.

    The serdes are those of the stream in a repartition topic and in the store of records that wait, where they are not
    known. That store, and options of it, go with `grace`.
    """

    grace: Duration | None


class WithoutKey(TypedDict, total=False):
    """For functions of the value. `name` is the node's."""

    with_key: Literal[False]
    name: str | None


class WithKey(TypedDict, total=False):
    """For functions of key and value. `name` is the node's."""

    with_key: Required[Literal[True]]
    name: str | None


class OfRecord(TypedDict, total=False):
    """For functions of the whole record. `name` is the node's."""

    with_record: Required[Literal[True]]
    name: str | None


class WithBothKeys(TypedDict, total=False):
    """For a joiner of the record's key, the key of the row, and both values. `name` is the node's."""

    with_both_keys: Required[Literal[True]]
    name: str | None


class BatchOptions(TypedDict, total=False):
    """The batches of a function; see `KStream.map_values_batch`."""

    as_: Literal["list", "numpy", "pandas", "arrow"]
    max_records: int
    max_wait: Duration


class BatchWithoutKey(BatchOptions, WithoutKey):
    """Functions of the values of a batch."""


class BatchWithKey(BatchOptions, WithKey):
    """Functions that get the keys of a batch first."""


class CallOptions(TypedDict, total=False):
    """The calls of a function that may wait; see `Lookups`."""

    capacity: int
    timeout: Duration
    order: CallOrder
    retries: Handler | None
    max_pending: int


class CallWithoutKey(CallOptions, WithoutKey):
    """Functions of a value that may wait."""


class CallWithKey(CallOptions, WithKey):
    """Functions that may wait and get the key first."""


class StoreWithoutKey(StoreOptions, WithoutKey):
    """Functions of values, and a store."""


class StoreWithKey(StoreOptions, WithKey):
    """Functions that get the key first, and a store."""


class StateWithoutKey(StateOptions, WithoutKey):
    """Functions of states and values, and a store."""


class StateWithKey(StateOptions, WithKey):
    """Functions that get the key first, and a store."""


class WindowWithoutKey(WindowOptions, WithoutKey):
    """Functions of values, and a store of windows."""


class WindowWithKey(WindowOptions, WithKey):
    """Functions that get the key first, and a store of windows."""


class GroupingWithoutKey(SerdeOptions, WithoutKey):
    """Functions of values, and serdes behind a grouping."""


class GroupingWithKey(SerdeOptions, WithKey):
    """Functions that get the key first, and serdes behind a grouping."""


class ForeignKeyWithoutKey(ForeignKeyOptions, WithoutKey):
    """Functions of values, and a join of tables."""


class ForeignKeyWithKey(ForeignKeyOptions, WithKey):
    """Functions that get the key first, and a join of tables."""


class StreamJoinWithoutKey(StreamJoinOptions, WithoutKey):
    """Functions of values, and a join with a stream."""


class StreamJoinWithKey(StreamJoinOptions, WithKey):
    """Functions that get the key first, and a join with a stream."""


class TableJoinWithoutKey(TableJoinOptions, WithoutKey):
    """Functions of values, and a join with a table."""


class TableJoinWithKey(TableJoinOptions, WithKey):
    """Functions that get the key first, and a join with a table."""
