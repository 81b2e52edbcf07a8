"""The verbs that lead out of a stream: to topics, processors of the user's own, and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from penstock import KeyPart, Partitioner, Processor, StoreBuilder, TopicChooser, ValueTransformer
from penstock.program.checks import check_class
from penstock.program.serdes import SerdeLike

from .graph.functions import check_function, checked_stores
from .graph.materialized import StoreLike, StoreOptions, materialized
from .graph.repartition import RepartitionStep, repartition_names
from .graph.serdes import Default, Serdes
from .graph.sources import SinkStep
from .graph.step import Flow, ProcessorStep
from .operators.reading import TopicTable
from .operators.stateless.user_step import FixedKey, UserStep, user_step_name
from .operators.table_source import TableUpdates
from .stream_base import K, StreamBase, V

if TYPE_CHECKING:
    from .stream import KStream
    from .table import KTable


Stores = Sequence[str | StoreBuilder]


class Output(StreamBase[K, V]):
    """Topics and processors."""

    def to(
        self,
        topic: str | TopicChooser,
        *,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        partitioner: Partitioner | None = None,
        partition_by: KeyPart | None = None,
        name: str | None = None,
    ) -> None:
        """Write the records to `topic`, or to the topic that a function of (record, metadata) returns for each.

        Serdes are the stream's as far as they are known, else the application's. `partition_by`, a function of the
        key, returns the part of it that chooses the partition; without it that is the whole key, and of a windowed key
        the key without its window. `partitioner` chooses it in another way.
        """
        if not isinstance(topic, str):
            check_function("to", topic, "record", "metadata", what="topic or function")
        step = SinkStep(
            self.recorder.names.step("KSTREAM-SINK-", name),
            topic,
            self.flow.serdes.given(key_serde, value_serde),
            partitioner,
            partition_by,
        )
        self.recorder.add(step, self.flow.step)

    def repartition(
        self,
        name: str | None = None,
        *,
        partitions: int | None = None,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        partitioner: Partitioner | None = None,
        partition_by: KeyPart | None = None,
    ) -> KStream[K, V]:
        """Send the records through a topic of the application's own, `NAME-repartition`, and continue behind it.

        `partitions` None takes the largest count among the topics that lead to it. Records without a key are dropped.
        `partitioner` and `partition_by` as in `to`.
        """
        base = self.recorder.names.unless_given(name, "KSTREAM-REPARTITION-")
        return self._repartitioned(
            base,
            self.flow.serdes.given(key_serde, value_serde),
            how='repartition("NAME")',
            may_merge=False,
            partitions=partitions,
            partitioner=partitioner,
            partition_by=partition_by,
        )

    def _repartitioned(self, base: str, serdes: Serdes, *, how: str, **options: Any) -> KStream[K, V]:
        """Return this stream behind a repartition topic that is named after `base`."""
        step = RepartitionStep(repartition_names(self.recorder.names, base, how), serdes, **options)
        self.recorder.add(step, self.flow.step)
        # In the topic, a key that a function made has the application's serde.
        known = serdes.else_of(Serdes(Default.TOPIC))
        return self._stream_of(Flow(step, known, frozenset({step.name})))

    # ------------------------------------------------------------------ processors

    def process(
        self,
        supplier: Callable[..., Processor] | str,
        *,
        stores: Stores = (),
        name: str | None = None,
        **options: Any,
    ) -> KStream[Any, Any]:
        """Process the records with a Processor: a class, a factory, or the name of an installed one.

        `stores` are stores it uses, declared or by name; `options` are the arguments of the supplier. It may change
        keys.
        """
        return self._user_processor(
            "KSTREAM-PROCESSOR-", name, supplier, stores, options, Serdes(), supplier, changes_key=True
        )

    def process_values(
        self,
        supplier: Callable[..., ValueTransformer | Processor] | str,
        *,
        stores: Stores = (),
        name: str | None = None,
        **options: Any,
    ) -> KStream[K, Any]:
        """Process the records with a ValueTransformer, or with a Processor that keeps keys as they are; see `process`.

        A Processor that forwards another key is an error at that record.
        """
        code = supplier
        if isinstance(supplier, type) and issubclass(supplier, Processor):
            check_class("process_values", supplier)
            timers = None if supplier.on_timer is Processor.on_timer else True
            options = {"transformer": supplier, "arguments": options, "timers": timers}
            supplier = FixedKey
        serdes = Serdes(self.flow.serdes.key)
        return self._user_processor(
            "KSTREAM-PROCESSVALUES-", name, supplier, stores, options, serdes, code, changes_key=False
        )

    def _user_processor(
        self,
        prefix: str,
        name: str | None,
        supplier: Any,
        stores: Stores,
        options: dict[str, Any],
        serdes: Serdes,
        code: Any,
        *,
        changes_key: bool,
    ) -> KStream[Any, Any]:
        connected, verb = checked_stores(stores), "process" if changes_key else "process_values"
        step = UserStep(
            user_step_name(self.recorder.names, name, prefix, verb),
            supplier,
            options,
            code,
            is_named=name is not None,
            stores=lambda writer: connected,
            changes_key=changes_key,
            changes_value=True,
        )
        return self._stream(step, serdes, needs_repartition=True if changes_key else None)

    def to_table(
        self, store: StoreLike | None = None, *, name: str | None = None, **options: Unpack[StoreOptions]
    ) -> KTable[K, V]:
        """Return the table of the latest value of each key; a record without a value deletes its key.

        Records without a key are dropped. If a verb before may have changed keys, records go through a repartition
        topic, `NAME-repartition`. `store` is the name of the table's store, or a declared store; without it, the table
        gets a store only if a verb needs one. Semantics: Kafka Streams' KStream.toTable.
        """
        names = self.recorder.names
        step = ProcessorStep(names.step("KSTREAM-TOTABLE-", name), TableUpdates, {"store": None, "sends_old": False})
        kept = materialized("to_table", names, store, options, "KSTREAM-TOTABLE-")
        serdes = kept.serdes(self.flow.serdes)
        flow = self.flow
        if flow.needs_repartition:
            flow = self._repartitioned(step.name, serdes, how='to_table(name="NAME")').flow
            serdes = Serdes(flow.serdes.key, serdes.value)
        self.recorder.add(step, flow.step)
        made: KTable[K, V] = self.recorder.kinds.table(
            self.recorder,
            Flow(step, serdes, flow.sources),
            TopicTable(step, kept, serdes),
            kept.own_name,
        )
        return made
