"""RateLimit: the processor named `contrib.rate_limit`, which lets a limited number of records of each key pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import (
    STREAM_TIME,
    ConfigError,
    Duration,
    KeyValueStore,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    StoreBuilder,
    duration_ms,
    key_value_store,
)


class RateLimit(Processor):
    """Forwards at most `limit` records of a key at once, and `limit` in each `per` on average; drops the others.

    A token bucket for each key: it has `limit` tokens at first, a record that passes takes one, and `limit` tokens come
    back evenly in `per` of `clock`: stream time, or WALL_CLOCK_TIME. So any span of length `per` has fewer than
    `2 * limit` records. Stream time never goes back, so a late record counts at the stream time of its arrival.

    `by` returns what is limited (default: a record's key); a record for which it is None passes. The buckets are in a
    key-value store named `store`, which the processor brings, and which forgets a bucket that is full again. Dropped
    records are counted in `metrics.user["limited"]`.

    Raises ConfigError for a `limit` that is no whole number of at least 1, and for a wrong `per`.

    >>> from penstock import Topology
    >>> from penstock.testing import TopologyTestDriver
    >>> topology = Topology().add_source("in", "alerts")
    >>> topology = topology.add_processor("few", "contrib.rate_limit", "in", limit=1, per="1m")
    >>> with TopologyTestDriver(topology.add_sink("out", "pages", "few")) as driver:
    ...     for second in (0, 30, 60):
    ...         driver.pipe("alerts", "disk", f"second {second}", timestamp=second * 1000)
    ...     [record.value for record in driver.read_all("pages")]
    ['second 0', 'second 60']
    """

    @classmethod
    def stores(
        cls,
        limit: int,
        per: Duration,
        store: str = "rates",
        by: Callable[[Record], Any] | None = None,
        clock: PunctuationType = STREAM_TIME,
    ) -> list[StoreBuilder]:
        return [key_value_store(store, value_serde="int", ttl=per, ttl_clock=clock)]

    def __init__(
        self,
        limit: int,
        per: Duration,
        store: str = "rates",
        by: Callable[[Record], Any] | None = None,
        clock: PunctuationType = STREAM_TIME,
    ) -> None:
        """Take the size of a bucket, the time in which an empty one fills, and what returns the bucket of a record."""
        if type(limit) is not int or limit < 1:
            raise ConfigError(f"limit must be a whole number of at least 1, found {limit!r}")
        self._limit = limit
        self._per = duration_ms(per, "per")
        self._store = store
        self._by = by
        self._clock = clock

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._full_at: KeyValueStore[Any, int] = context.get_store(self._store)

    def process(self, record: Record) -> None:
        """Forward a record if the bucket of its key has a token."""
        bucket = record.key if self._by is None else self._by(record)
        if bucket is None or self._take(bucket):
            self.context.forward(record)
        else:
            self.context.metrics.user["limited"] += 1

    def _take(self, bucket: Any) -> bool:
        """Take a token, if there is one.

        The state is when the bucket is full again, in units of 1/limit ms: whole numbers, so nothing is rounded. A
        token is `per` of them.
        """
        context = self.context
        is_stream = self._clock is STREAM_TIME
        now = (context.current_stream_time_ms() if is_stream else context.current_system_time_ms()) * self._limit
        full_at = max(self._full_at.get(bucket) or now, now) + self._per
        if full_at > now + self._per * self._limit:
            return False
        self._full_at.put(bucket, full_at)
        return True
