"""StatefulMap: the processor of `stateful_map`, a mapper with a state for each key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import (
    KeyValueStoreSpec,
    ProcessingError,
    ProcessorContext,
    Record,
    StoreSpec,
    TopologyError,
    key_value_store,
)
from penstock.operator import Operator, Run
from penstock.support.own_copy import IMMUTABLE, own_copy

from ..graph.materialized import Materialized, kept_options
from ..graph.serdes import Serdes, key_of_store, value_of_store
from ..graph.step import Writer
from .table_store import NULL_KEY


@dataclass(kw_only=True, eq=False)
class StatefulMap(Operator):
    """Forwards each record with the result of `function`, and keeps the state that it returns in `store`.

    `function` gets the state and the value, `with_key` the key before them. `initial` makes the first state of a key.
    A state of None is deleted. Records without a key are dropped and counted.
    """

    forwards_each = forwards_last = True

    function: Callable[..., Any]
    initial: Callable[[], Any]
    store: str
    with_key: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        store, forward, drop = context.get_store(self.store), context.send, context.metrics.drop
        get, put, delete = store.get, store.put, store.delete
        function, initial, with_key = self.function, self.initial, self.with_key

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None:
                drop(NULL_KEY)
                return
            state = found = get(key)
            if found is None:
                state = own_copy(initial())  # `initial` may return one object each time
            if with_key:
                made = function(key if type(key) in IMMUTABLE else own_copy(key), state, value)
            else:
                made = function(state, value)
            if type(made) is not tuple or len(made) != 2:
                raise ProcessingError(
                    f"stateful_map: the function must return a pair, the next state and the result, found {made!r}"
                )
            state, result = made
            if state is not None:
                put(key, state)
            elif found is not None:
                delete(key)
            forward((key, result, timestamp, headers))

        return run


def state_store(kept: Materialized, writer: Writer, serdes: Serdes) -> StoreSpec:
    """Return the declared store of a StatefulMap, whose values are the states.

    Raises TopologyError for a declared store of another kind.
    """
    form: dict[str, Any] = {
        "key_serde": key_of_store(serdes.key, writer.settings),
        "value_serde": value_of_store(serdes.value, writer.settings),
    }
    given = kept.given
    if given is None:
        return key_value_store(kept.name, **form, **kept_options(kept.options, "ttl", "ttl_clock"))
    if not isinstance(given, KeyValueStoreSpec) or given.timestamped or given.cached:
        raise TopologyError(
            f"stateful_map: store {given.name!r}: expected a key_value_store of plain values, without timestamped=True "
            f"and cached=True, found {given!r}"
        )
    return dataclasses.replace(given, **form)
