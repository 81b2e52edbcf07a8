"""BatchSize: how many records a batch plans to read, from how long the batches before it took."""

from __future__ import annotations

from collections.abc import Callable

_FIRST_RECORDS = 500_000
_LEAST_RECORDS = 1_000
_FIXED_SECONDS = 0.5
"""The fixed cost of a batch until one with few records was seen."""
_FIXED_COSTS = 60
"""A batch may take so many times its fixed cost, so that the limit costs less than 2 % of the throughput."""
_SHORTEST, _LONGEST = 5.0, 60.0
"""Limits in seconds for how long a batch may take."""
_FEW = 0.02
"""The share of the limit below which a batch's time counts as its fixed cost."""
_MOST_GROWTH = 8.0
_OPENING_SECONDS = 5.0
"""About how long hosts take to start and tasks to open, which says nothing about records."""
_REST = 0.25
"""The share of the limit up to which the rest of a backlog is read with the batch before it: it would not be worth the
fixed cost of a batch."""


class BatchSize:
    """The limit of records a batch, so that a backlog is read in batches of limited time.

    A batch that stayed below the limit read all there was; a small load is never held back. `interval_seconds`: of
    Spark's trigger, 0 for batches back to back. `seconds` is a clock that never goes back.
    """

    def __init__(self, interval_seconds: float, seconds: Callable[[], float]) -> None:
        self._interval = interval_seconds
        self._seconds = seconds
        self._fixed = _FIXED_SECONDS
        self._records = 0
        self._opens = False
        self._began: float | None = None
        self._took: float | None = None
        self.limit = _FIRST_RECORDS

    def portion(self, backlog: int) -> int:
        """Return how many records of a backlog the next batch reads."""
        return backlog if backlog <= self.limit * (1 + _REST) else self.limit

    def begin(self, records: int, *, opens: bool = False) -> None:
        """Note that a batch begins that reads so many records. `opens`: it opens tasks before."""
        self._records, self._opens, self._began, self._took = records, opens, self._seconds(), None

    def end(self) -> bool:
        """Note that the batch has ended; return whether this is the first call since it began."""
        if self._began is None or self._took is not None:
            return False
        self._took = self._seconds() - self._began
        return True

    def learn(self) -> None:
        """Adjust the limit to how long the last batch took. Call it if all went well, and once a batch.

        The limit follows the time of full batches, and not a rate of records: batches below it wait for the trigger, or
        are so short that their time says little about the records.
        """
        took = self._took
        if took is None:
            return
        if self._records < _FEW * self.limit:
            if not self._interval and not self._opens:
                self._fixed += (took - self._fixed) / 5
            return
        if self._opens:
            took = max(took - _OPENING_SECONDS, took / _MOST_GROWTH)
        wanted = self._wanted_seconds()
        if self._records >= self.limit or took > wanted:
            factor = min(_MOST_GROWTH, max(1 / _MOST_GROWTH, wanted / max(took, 0.001)))
            self.limit = max(_LEAST_RECORDS, round(self._records * factor))

    def _wanted_seconds(self) -> float:
        # Longer than the trigger's interval: a batch within it cannot be told from a shorter one.
        return max(2 * self._interval, min(_LONGEST, max(_SHORTEST, _FIXED_COSTS * self._fixed)))
