"""MapValuesAsync and its relatives: the processors of verbs whose functions may wait, each record beside the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock import InFlightOptions, ProcessorContext, Record, Serde, StoreBuilder, TopologyError
from penstock.operator import Run
from penstock.program.in_flight import is_coroutine_function, key_bytes_of, pending_store
from penstock.program.serdes import resolve_serde
from penstock.support.callbacks import check_plain
from penstock.support.own_copy import IMMUTABLE, own_copy

from ..graph.functions import check_function
from ..graph.serdes import Serdes, key_of_store, value_of_store
from ..graph.step import Stores, Writer
from .map import FlatMapValues, OfFunction, Peek


@dataclass(kw_only=True, eq=False)
class Lookup(OfFunction):
    """Calls `function` for each record beside the task, and forwards what follows from its result.

    `then` is the operator of the verb that does not wait: made with a function that returns the result, it forwards
    what follows from it. `serdes` are those of the records in flight.
    """

    answers_later = True

    store: str
    options: InFlightOptions
    then: type[OfFunction]
    serdes: tuple[Serde[Any], Serde[Any]]

    @classmethod
    def saved_with(cls, *args: Any, store: str, **options: Any) -> str:
        """Return the store of the records in flight: their time belongs to it."""
        return store

    def bind(self, context: ProcessorContext) -> Run:
        function, with_key = self.function, self.with_key
        if self.then is FlatMapValues and not self.options.is_async:
            function = partial(_listed, function)
        result: Any = None
        given: dict[str, Any] = {"is_last": True} if self.then is Peek else {}
        run = self.then(function=lambda value: result, **given).bind(context)

        def call(record: Record) -> Callable[[], Any]:
            key, value = record[0], record[1]
            if type(value) not in IMMUTABLE:
                value = own_copy(value)  # the record may be stored while the function has it
            if not with_key:
                return partial(function, value)
            return partial(function, key if type(key) in IMMUTABLE else own_copy(key), value)

        def emit(record: Record, returned: Any) -> None:
            nonlocal result
            result = returned
            try:
                run(record)
            finally:
                result = None

        return context.in_flight(call, emit, key_bytes_of(*self.serdes), self.store, self.options)


def _listed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, a generator as a list: it is to run here, and not in the task."""
    made = function(*arguments)
    return list(made) if inspect.isgenerator(made) else made


def check_lookup(verb: str, function: Any, *, with_key: bool) -> None:
    """Refuse what cannot be called with a value, or a key and a value. Raises TopologyError."""
    arguments = ("key", "value") if with_key else ("value",)
    check_function(verb, function, *arguments, may_wait=True)
    called = function.func if isinstance(function, partial) else function
    if inspect.isasyncgenfunction(called):
        raise TopologyError(
            f"{verb}: its function is an async generator ({called.__qualname__}), since it has `yield`: return a list "
            "in its place"
        )
    if not is_coroutine_function(function):
        check_plain(verb, "its function", function, may_generate=verb == "flat_map_values_async")


def pending_serdes(serdes: Serdes, name: str, writer: Writer) -> tuple[Serde[Any], Serde[Any]]:
    """Return the serdes of keys and values in flight."""
    state, what = writer.settings.state_serde, f"store {name!r}"
    key, value = key_of_store(serdes.key, writer.settings), value_of_store(serdes.value, writer.settings)
    return resolve_serde(key, state, what), resolve_serde(value, state, what)


def stores_of_lookup(name: str, serdes: Serdes) -> Stores:
    """Return a function that declares the store of a node's records in flight."""

    def declared(writer: Writer) -> tuple[StoreBuilder]:
        return (pending_store(name, *pending_serdes(serdes, name, writer)),)

    return declared
