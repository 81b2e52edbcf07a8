"""The operator `acme.count`."""

from penstock import ProcessorContext, StoreBuilder, ValueAndTimestamp, key_value_store
from penstock.operator import Operator, Run, new


class Count(Operator):
    """Counts the records of each key that are at most `late_ms` older than the newest record of any key."""

    def __init__(self, store: str, late_ms: int) -> None:
        self._store = store
        self._late_ms = late_ms

    @classmethod
    def stores(cls, store: str, late_ms: int) -> list[StoreBuilder]:
        """Return the store of the counts."""
        return [key_value_store(store, key_serde="str", value_serde="int", timestamped=True)]

    @classmethod
    def saved_with(cls, store: str, late_ms: int) -> str:
        """Return the store of the counts: the time of the newest record belongs to them."""
        return store

    def bind(self, context: ProcessorContext) -> Run:
        """Return the function that gets each record."""
        counts = context.get_store(self._store)
        get, put, send, drop = counts.get, counts.put, context.send, context.metrics.drop
        times, late_ms = context.saved_numbers, self._late_ms

        def run(record: tuple[str, object, int, object]) -> None:
            key, _, timestamp, headers = record
            newest = times["newest"] = max(times.get("newest", -1), timestamp)
            if timestamp < newest - late_ms:
                drop("late")
                return
            entry = get(key)
            count = 1 if entry is None else entry[0] + 1
            put(key, new(ValueAndTimestamp, (count, timestamp)))
            send((key, count, timestamp, headers))

        return run
