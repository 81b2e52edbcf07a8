"""The classes that a user derives from: Processor, and ValueTransformer, which may not change the key."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from ..clock import Duration
from ..errors import TopologyError
from ..record import Record
from ..serde import Serde
from ..store import StoreBuilder
from ..support.callbacks import bound, check_plain
from .context import CallOrder, ProcessorContext, ValueTransformerContext
from .handlers import Handler


class Processor(ABC):
    """One node of a topology: gets records one at a time and forwards any number to its children.

    A task makes its own instance and calls `init`, then `process` for each record, then `close`, all from one thread. A
    new instance is made whenever the task is opened, which may be before any batch: attributes do not survive, stores
    do. An exception meets the processing exception handler. Semantics: Kafka Streams' Processor API (KIP-478).
    """

    context: ProcessorContext
    takes_tuples: ClassVar[bool] = False
    """Whether `process` accepts a plain tuple of a Record's four parts, which costs a third of a Record.

    Such a processor reads records by position.
    """
    forwards_each: bool = False
    """Whether it forwards each record that it gets once, at once, unless it raises or drops it
    (`context.metrics.drop`), and nothing else: then the engine need not count the records that it forwards, or gets. An
    operator may set it in `bind`, where it knows its stores."""
    forwards_last: ClassVar[bool] = False
    """Whether it is an operator whose function forwards a record at most once, to all children, does nothing after
    that, and has no `try` around it; and it forwards nowhere else. Then the engine may let it call its only child
    without the function between two nodes that catches the child's errors."""

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


class BatchProcessor(Processor):
    """A Processor that gets many records in one call: for a model, numpy, or a look-up of many keys at once.

    `process_batch` is called with up to `max_records` records of one task, in the order of their arrival: when there
    are that many, when the first one has waited for `max_wait` by the wall clock, before each commit, and before
    anything that has to come after them, such as a punctuator. Stores, punctuators, timers and all else of the context
    are those of a Processor. No record waits over a commit.

    While `process_batch` loops over `records`, the context is that of the record at hand: `record_metadata`, the stream
    time, and the place of what is forwarded among the other records. Without a loop it is that of the last record; and
    of what was forwarded later, never that of an earlier record. A forwarded record has the timestamp and headers that
    it was made with: `record.with_value(...)` keeps those of `record`. The nodes below get what was forwarded after the
    call. Timers that the batch sets are called after it, too.

    If it raises an error, nothing of the batch counts: the task goes back to its last commit, and processes each record
    by a call of its own until it has committed them again. So an error meets the processing exception handler with one
    record, as in `Processor.process`, and what the method does outside of stores may be done more than once.

    >>> from penstock import Topology
    >>> class Score(BatchProcessor):
    ...     def process_batch(self, records):
    ...         scores = [record.value * 2 for record in records]  # of all at once: model.predict(...)
    ...         for record, score in zip(records, scores):
    ...             self.context.forward(record.with_value(score))
    >>> topology = Topology().add_source("in", "features", value_serde="int").add_processor("score", Score, "in")
    >>> _ = topology.add_sink("out", "scores", "score", value_serde="int")
    >>> from penstock.testing import TopologyTestDriver
    >>> with TopologyTestDriver(topology) as driver:
    ...     driver.pipe_many("features", [("a", 1), ("b", 2)])
    ...     driver.read_values("scores")
    [2, 4]
    """

    holds_records: ClassVar[bool] = True
    """What it forwards keeps its place among the records that reach the nodes below by other ways."""
    max_records: int = 256
    """The maximum number of records of a call. A class sets it, or `__init__` does."""
    max_wait: Duration = "50ms"
    """How long the first record waits for others, at most."""

    @abstractmethod
    def process_batch(self, records: Sequence[Record]) -> None:
        """Handle some records; `records` is not empty."""

    def bind(self, context: ProcessorContext) -> Callable[[Record], Any]:
        """Return the function that holds each record for a batch."""
        return context.in_batches(self.process_batch, self.max_records, self.max_wait)

    def process(self, record: Record) -> None:
        """Handle one record as a batch of its own; the engine calls the function of `bind` instead."""
        self.process_batch((record,))


class AsyncProcessor(Processor):
    """A Processor that asks somebody else about each record: a service, a database, a slow library.

    For each record `request` returns what to ask for, `call` asks for it beside the task, which goes on with other
    records, and `process_result` gets the answer. `call` is `async def`, and runs in an event loop of the process; or a
    plain function, which runs in a thread: it has no context. The other two run in the task, with stores, `forward`,
    timers and all else of the context, which is that of the record. The calls are those of the DSL's
    `map_values_async`: a record without an answer is state, so it survives a crash, and is asked about again. Whatever
    `process_result` does happens once.

    >>> from penstock import Topology, key_value_store
    >>> class Rate(AsyncProcessor):
    ...     @classmethod
    ...     def stores(cls):
    ...         return [key_value_store("ratings")]
    ...     def request(self, record):
    ...         return record.value, self.context.get_store("ratings").get(record.key)
    ...     async def call(self, request):
    ...         text, before = request
    ...         return len(text) + (before or 0)  # stands for a service
    ...     def process_result(self, record, result):
    ...         self.context.get_store("ratings").put(record.key, result)
    ...         self.context.forward(record.with_value(result))
    >>> topology = Topology().add_source("in", "reviews").add_processor("rate", Rate, "in")
    >>> _ = topology.add_sink("out", "ratings", "rate", value_serde="int")
    >>> from penstock.testing import TopologyTestDriver
    >>> with TopologyTestDriver(topology) as driver:
    ...     driver.pipe_many("reviews", [("a", "good"), ("a", "bad")])
    ...     driver.read_values("ratings")
    [4, 7]
    """

    answers_later: ClassVar[bool] = True
    """Its records may be in flight at a commit."""
    capacity: int = 100
    """How many calls of a task run at once. A class sets this and the following ones, or `__init__` does."""
    max_pending: int = 10_000
    """The number of records in flight at which the task reads no more."""
    timeout: Duration = "5s"
    """A call that takes longer has failed; it is cancelled if it is a coroutine."""
    order: CallOrder = "key"
    """With "key" one record of a key is asked about at a time, so `request` sees what the one before it left; with
    "partition" all results come in the order of the records, with "none" as they are there. Nodes below in the same
    task that may depend on time get all results in order."""
    retries: Handler | None = None
    """What decides about a `request` or `call` that fails, for instance `Retry()`; None: `processing_handler`. The
    topic of a DeadLetter is known before the start only if the class sets it."""
    key_serde: ClassVar[str | Serde[Any]] = "msgpack"
    """The serde of keys in flight, in the store `NAME-pending` of the node."""
    value_serde: ClassVar[str | Serde[Any]] = "msgpack"
    """The serde of values in flight."""
    _run: Callable[[Record], Any] | None = None

    def request(self, record: Record) -> Any:
        """Return the argument of `call`, which gets a copy; by default the record's value.

        It may be called more than once for a record, so it reads stores and changes none; forwarding is an error.
        """
        return record.value

    @abstractmethod
    def call(self, request: Any) -> Any:
        """Return an answer, in a plain function or `async def`. It may be called more than once for a record."""

    @abstractmethod
    def process_result(self, record: Record, result: Any) -> None:
        """Handle a record and the answer about it."""

    def bind(self, context: ProcessorContext) -> Callable[[Record], Any]:
        """Return the function that takes each record."""
        return context.in_calls(self)

    def process(self, record: Record) -> None:
        """Handle one record; the engine calls the function of `bind` instead."""
        if self._run is None:
            self._run = bound(self, self.context)
        self._run(record)


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
        """Return declared stores; called with the arguments of the processor when a node is added.

        Nodes that return a store of the same name share it, so each of them has to declare it alike.
        """
        ...


F = TypeVar("F", bound=Callable[..., Any])
_MARK = "_penstock_visitor"
_WITHOUT_ARGUMENT = ("self", "key", "value")
_WITH_ARGUMENT = (*_WITHOUT_ARGUMENT, "argument")


class Visitor(NamedTuple):
    """The declaration of a `visitor` method.

    `store`: the store that it visits; None: the only one that its node is connected to. `takes_argument`: it accepts
    the argument of the visit. `needs_argument`: it requires that argument.
    """

    store: str | None
    takes_argument: bool
    needs_argument: bool


def visitor(store: str | None = None) -> Callable[[F], F]:
    """Mark a method of a Processor as a visitor of a store: it is called with each key and its value when asked for.

    `penstock visit` asks for it, also while the application runs. Each task then goes through its part of the store in
    portions between records, in the order of the keys as bytes, and calls `method(key, value)`, or `method(key, value,
    argument)`. A visit that is asked for without an argument has the default of the method's fourth parameter; without
    a default it is refused. As in a punctuator, there is no record; the method may forward, and put and delete in any
    store of the node. It all counts with the task's commits, and so does how far the visit is: each key that is there
    when the visit begins, and is not deleted before its turn, is visited once. Keys of window and session stores are
    `Windowed`.

    `store` names a store that the node is connected to; None: its only one. Raises TopologyError for a method that does
    not take these arguments. Semantics: goka's visitors.

    >>> from penstock import Processor
    >>> class Totals(Processor):
    ...     def process(self, record):
    ...         self.context.get_store("totals").put(record.key, record.value)
    ...     @visitor("totals")
    ...     def drop_zeros(self, key, value):
    ...         if value == 0:
    ...             self.context.get_store("totals").delete(key)
    """
    if store is not None and not isinstance(store, str):
        raise TopologyError(
            f"visitor: expected the name of a store, found {store!r}: write @visitor() or @visitor(NAME)"
        )

    def mark(method: F) -> F:
        name = getattr(method, "__qualname__", repr(method))
        check_plain("visitor", name, method)
        signature = inspect.signature(method)
        takes, needs = _takes(signature, _WITH_ARGUMENT), not _takes(signature, _WITHOUT_ARGUMENT)
        if needs and not takes:
            raise TopologyError(
                f"visitor {name}: it is called with (key, value), or with (key, value, argument), and takes {signature}"
            )
        setattr(method, _MARK, Visitor(store, takes, needs))
        return method

    return mark


def _takes(signature: inspect.Signature, arguments: tuple[str, ...]) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def visitors_of(kind: type) -> Mapping[str, Visitor]:
    """Return the visitors of a processor's class, by the names of the methods."""
    names = (name for name in dir(kind) if not name.startswith("__"))
    # Statically: an attribute of the class may be a closed store, which refuses every look at it.
    found = {name: inspect.getattr_static(getattr(kind, name, None), _MARK, None) for name in names}
    return {name: each for name, each in found.items() if isinstance(each, Visitor)}
