"""ValueRoute: finds the partition again that the values of a store have, after a division by other partitions."""

from __future__ import annotations

from typing import Any

from penstock import Assignment, IncompatibleStateError, Serde, StoreSpec, Subtopology
from penstock.program.nodes import decorate
from penstock.program.serdes import resolve_serde
from penstock.store.specs import declared_serdes
from penstock.stores.rows.envelope import unwrap, wrap
from penstock.support.names import changelog_topic

from .plan import ReshardPlan, task_count
from .routing import candidates_of


class ValueRoute:
    """The values of one store, which have the partition of a record with another key: see `PartitionInValue`.

    That partition is found as for a store of the sub-topology whose partitions are meant.
    """

    def __init__(self, plan: ReshardPlan, store: StoreSpec, then: Assignment) -> None:
        self._where = f"application {plan.id!r}, store {store.name!r}"
        in_value, settings, program = store.division.partition_in_value, plan.before.settings, plan.before.program
        assert in_value is not None
        self._in_value = in_value
        topic = decorate(plan.before.id, in_value.topic, program.internal_topics)
        other = next(each for each in program.subtopologies if topic in plan.tasks.sources[each.id])
        self._before, self._then = task_count(plan.tasks, other.id), task_count(then, other.id)
        serde = resolve_serde(
            declared_serdes(store)["value_serde"], settings.state_serde, f"store {store.name!r}", settings.of_plugins
        )
        self._serde: Serde[Any] = serde.bind(changelog_topic(plan.before.id, store.name), is_key=False)
        self._candidates = candidates_of(plan, other, other.sources, without=topic)
        self._refused = "no source has records of these keys"

    def check(self, data: bytes) -> None:
        """Leave the candidates that find the partition in a row. Raises IncompatibleStateError if none is left."""
        key, partition = self._in_value.find(self._serde.deserialize(unwrap(data).value))
        for candidate in tuple(self._candidates):
            reason = candidate.misfit(key, partition, self._before)
            if reason:
                self._candidates.remove(candidate)
                self._refused = reason
        if not self._candidates:
            raise IncompatibleStateError(
                f"{self._where} has partitions that are not those of its keys: key {key!r}: {self._refused}"
            )

    def moved(self, data: bytes) -> bytes:
        """Return a row with the partition among those of the new layout."""
        envelope = unwrap(data)
        value = self._serde.deserialize(envelope.value)
        key, _ = self._in_value.find(value)
        value = self._in_value.put(value, self._candidates[0].partition(key, self._then))
        return wrap(self._serde.serialize(value), *envelope[1:])


def value_route(plan: ReshardPlan, subtopology: Subtopology, store: str, then: Assignment) -> ValueRoute | None:
    """Return the route of a store whose values have partitions; None for others."""
    spec = next((each for each in subtopology.stores if each.name == store), None)
    if not isinstance(spec, StoreSpec) or spec.division.partition_in_value is None:
        return None
    return ValueRoute(plan, spec, then)
