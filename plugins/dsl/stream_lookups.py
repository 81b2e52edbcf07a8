"""The verbs of a stream whose functions may wait: for a service, a database, or a slow library."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock import CallOrder, Duration, Handler
from penstock.program.in_flight import call_options

from .base import K, StreamBase, V
from .graph.options import CallWithKey, CallWithoutKey
from .graph.serdes import Serdes
from .graph.step import ProcessorStep
from .operators.lookup import Lookup, check_lookup, pending_serdes, stores_of_lookup
from .operators.map import Filter, FlatMapValues, MapValues, OfFunction, Peek

if TYPE_CHECKING:
    from .stream import KStream

V2 = TypeVar("V2")


class Lookups(StreamBase[K, V]):
    """Verbs whose function is called beside the task, which goes on with other records meanwhile.

    The function is `async def`, and runs in an event loop of the process; or a plain function, which runs in a thread.
    It gets the value; with `with_key=True` it gets the key first. Calls are at least once, and their effect in the
    program exactly once: a record without a result is state, so it survives a crash, and the call is made again.

    `capacity`: calls of a task at once. `timeout`: what takes longer has failed; the call is cancelled if it is a
    coroutine. `order`: with "key", the results of a key come in the order of its records, and it has one call at a
    time; with "partition" all results come in order, with "none" as they are there. Nodes behind in the same task that
    may depend on time (windows, joins of streams, processors) get all results in order. `retries`: what decides about a
    call that fails, for instance `Retry()`; else `processing_handler` does. A retry delays this record, and with "key"
    those of its key. `max_pending`: records in flight at which the task reads no more. `name` is the node's, and
    `NAME-pending` its store.
    """

    @overload
    def map_values_async(
        self, function: Callable[[V], Awaitable[V2]], **options: Unpack[CallWithoutKey]
    ) -> KStream[K, V2]: ...
    @overload
    def map_values_async(
        self, function: Callable[[K, V], Awaitable[V2]], **options: Unpack[CallWithKey]
    ) -> KStream[K, V2]: ...
    @overload
    def map_values_async(self, function: Callable[[V], V2], **options: Unpack[CallWithoutKey]) -> KStream[K, V2]: ...
    @overload
    def map_values_async(self, function: Callable[[K, V], V2], **options: Unpack[CallWithKey]) -> KStream[K, V2]: ...
    def map_values_async(
        self,
        function: Callable[..., Any],
        *,
        capacity: int = 100,
        timeout: Duration = "5s",
        order: CallOrder = "key",
        retries: Handler | None = None,
        max_pending: int = 10_000,
        with_key: bool = False,
        name: str | None = None,
    ) -> Any:
        """Replace each value by the result of `function`, which may wait."""
        options = call_options("map_values_async", function, capacity, max_pending, timeout, order, retries)
        serdes = Serdes(self.flow.serdes.key)
        return self._called("map_values_async", function, MapValues, options, with_key, name, serdes)

    @overload
    def flat_map_values_async(
        self, function: Callable[[V], Awaitable[Iterable[V2]]], **options: Unpack[CallWithoutKey]
    ) -> KStream[K, V2]: ...
    @overload
    def flat_map_values_async(
        self, function: Callable[[K, V], Awaitable[Iterable[V2]]], **options: Unpack[CallWithKey]
    ) -> KStream[K, V2]: ...
    @overload
    def flat_map_values_async(
        self, function: Callable[[V], Iterable[V2]], **options: Unpack[CallWithoutKey]
    ) -> KStream[K, V2]: ...
    @overload
    def flat_map_values_async(
        self, function: Callable[[K, V], Iterable[V2]], **options: Unpack[CallWithKey]
    ) -> KStream[K, V2]: ...
    def flat_map_values_async(
        self,
        function: Callable[..., Any],
        *,
        capacity: int = 100,
        timeout: Duration = "5s",
        order: CallOrder = "key",
        retries: Handler | None = None,
        max_pending: int = 10_000,
        with_key: bool = False,
        name: str | None = None,
    ) -> Any:
        """Replace each record by one for each value in the result of `function`, which may wait."""
        options = call_options("flat_map_values_async", function, capacity, max_pending, timeout, order, retries)
        serdes = Serdes(self.flow.serdes.key)
        return self._called("flat_map_values_async", function, FlatMapValues, options, with_key, name, serdes)

    @overload
    def filter_async(self, predicate: Callable[[V], Any], **options: Unpack[CallWithoutKey]) -> KStream[K, V]: ...
    @overload
    def filter_async(self, predicate: Callable[[K, V], Any], **options: Unpack[CallWithKey]) -> KStream[K, V]: ...
    def filter_async(
        self,
        predicate: Callable[..., Any],
        *,
        capacity: int = 100,
        timeout: Duration = "5s",
        order: CallOrder = "key",
        retries: Handler | None = None,
        max_pending: int = 10_000,
        with_key: bool = False,
        name: str | None = None,
    ) -> Any:
        """Keep the records for which the result of `predicate`, which may wait, is true."""
        options = call_options("filter_async", predicate, capacity, max_pending, timeout, order, retries)
        return self._called("filter_async", predicate, Filter, options, with_key, name, self.flow.serdes)

    @overload
    def foreach_async(self, function: Callable[[V], Any], **options: Unpack[CallWithoutKey]) -> None: ...
    @overload
    def foreach_async(self, function: Callable[[K, V], Any], **options: Unpack[CallWithKey]) -> None: ...
    def foreach_async(
        self,
        function: Callable[..., Any],
        *,
        capacity: int = 100,
        timeout: Duration = "5s",
        order: CallOrder = "key",
        retries: Handler | None = None,
        max_pending: int = 10_000,
        with_key: bool = False,
        name: str | None = None,
    ) -> None:
        """Call `function`, which may wait, for each record; the stream ends here. It is called at least once."""
        options = call_options("foreach_async", function, capacity, max_pending, timeout, order, retries)
        self._called("foreach_async", function, Peek, options, with_key, name, self.flow.serdes)

    def _called(
        self, verb: str, function: Any, then: type[OfFunction], options: Any, with_key: bool, name: str | None,
        serdes: Serdes,
    ) -> KStream[Any, Any]:  # fmt: skip
        """Return the stream that a node makes which calls `function`; `then`: see Lookup."""
        check_lookup(verb, function, with_key=with_key)
        recorder, flow = self.recorder, self.flow
        node = recorder.names.step(f"KSTREAM-{verb.replace('_', '').upper()}-", name)
        store = f"{node}-pending"
        if name is None:
            recorder.names.generated[store] = f'{verb}(..., name="NAME")'
        arguments = {"function": function, "with_key": with_key, "store": store, "options": options, "then": then}
        step = ProcessorStep(
            node, Lookup, arguments, stores=stores_of_lookup(store, flow.serdes),
            late=lambda writer: {"serdes": pending_serdes(flow.serdes, store, writer)},
            changes_value=then in (MapValues, FlatMapValues),
        )  # fmt: skip
        return self._stream(step, serdes)
