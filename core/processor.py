"""The classes that a user derives from: Processor, and ValueTransformer, which may not change the key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from .context import ProcessorContext, ValueTransformerContext
from .errors import TopologyError
from .record import Record
from .store import StoreBuilder


class Processor(ABC):
    """One node of a topology: gets records one at a time and forwards any number to its children.

    A task makes its own instance and calls `init`, then `process` for each record, then `close`, all from
    one thread. Instances are made anew whenever the task is opened, which may be before any batch:
    attributes do not survive, stores do. An exception meets the processing exception handler.
    Semantics: Kafka Streams' Processor API (KIP-478).
    """

    context: ProcessorContext
    takes_tuples: ClassVar[bool] = False
    """Whether the engine may hand it, in place of a Record, a plain tuple of the same four parts, which is made in a
    third of the time. Such a processor reads records by position."""
    forwards_each: bool = False
    """Whether it forwards each record that it gets once, at once, unless it raises or drops it
    (`context.metrics.drop`), and nothing else: then the engine need not count the records that it forwards, or gets. An
    operator may set it in `bind`, where it knows its stores."""

    @classmethod
    def stores(cls, *args: Any, **options: Any) -> Iterable[StoreBuilder]:
        """Return the stores that the processor brings; see ConnectedStoreProvider."""
        return ()

    @classmethod
    def saved_with(cls, *args: Any, **options: Any) -> str | None:
        """Return the store to which `context.saved_numbers` and the schedules belong; None: to the node.

        Called with the processor's arguments when a node is added. What belongs to a store keeps its place when the
        node gets another name, and is dropped or parked with the store.
        """
        return None

    def init(self, context: ProcessorContext) -> None:
        """Keep the context; look up stores and schedule punctuators here. Call super().init(context)."""
        self.context = context

    def bind(self, context: ProcessorContext) -> Callable[[Record], Any]:
        """Return the function that gets each record: `process`, unless a subclass has a faster one.

        Called once, before `init`, with the same context: stores and `forward` can be looked up here and kept in a
        closure. Do not forward or schedule here.
        """
        return self.process

    @abstractmethod
    def process(self, record: Record) -> None:
        """Handle one record."""

    def on_timer(self, key: Any, at: int) -> None:
        """Handle a timer that `context.timer` set for `key`; `at` is the time (ms) that it was set for.

        The timer is gone when this is called. An exception meets the processing exception handler.
        """
        raise TopologyError(f"{type(self).__name__} sets a timer, and does not override on_timer, which it would call")

    def close(self) -> None:
        """Release what `init` took; called once, also after a failure. Forwarding here is an error."""
        return None


class ValueTransformer(ABC):
    """A processor that answers each record with one new value and cannot change the key.

    What Kafka Streams calls ValueTransformerWithKey. It may read and write stores, and schedule
    punctuators, but a punctuator of it cannot forward.
    """

    context: ValueTransformerContext

    @classmethod
    def stores(cls, *args: Any, **options: Any) -> Iterable[StoreBuilder]:
        """Return the stores that the transformer brings; see ConnectedStoreProvider."""
        return ()

    def init(self, context: ValueTransformerContext) -> None:
        """Keep the context; look up stores here. Call super().init(context)."""
        self.context = context

    @abstractmethod
    def transform(self, key: Any, value: Any) -> Any:
        """Return the new value. Timestamp, headers and key stay."""

    def close(self) -> None:
        """Release what `init` took; called once, also after a failure."""
        return None


ProcessorSupplier = Callable[[], Processor | ValueTransformer]
"""A class or factory that makes a new instance at each call."""


class ConnectedStoreProvider(Protocol):
    """A supplier that brings the stores of its processors: a topology connects them to each node that it makes.

    A Processor's class is one, and overrides `stores` as a classmethod; so is any other supplier with such an
    attribute. Semantics: Kafka Streams' ConnectedStoreProvider (KIP-401).

    >>> from penstock import Topology, key_value_store
    >>> class Count(Processor):
    ...     @classmethod
    ...     def stores(cls, store="counts"):
    ...         return [key_value_store(store)]
    ...     def __init__(self, store="counts"):
    ...         self._store = store
    ...     def process(self, record):
    ...         counts = self.context.get_store(self._store)
    ...         counts.put(record.key, (counts.get(record.key) or 0) + 1)
    >>> topology = Topology().add_source("in", "visits").add_processor("count", Count, "in", store="visits")
    >>> list(topology.build().stores)
    ['visits']
    """

    def stores(self, *args: Any, **options: Any) -> Iterable[StoreBuilder]:
        """Return declared stores; called with the arguments that make a processor, when a node is added.

        A store that several nodes bring is one store, which they share; so it has to be declared alike each time.
        """
        ...
