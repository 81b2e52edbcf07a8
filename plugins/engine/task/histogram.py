"""Histogram: how often something took how long, in buckets that are the same everywhere, so that counts add up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from penstock import HISTOGRAM_BOUNDS as BOUNDS


class Histogram:
    """Counts seconds by bucket. `data`: the sum of all seconds, and then the count of each bucket."""

    def __init__(self) -> None:
        self.data: list[float] = _empty()

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a time, several times; one below 0 counts as 0: clocks differ."""
        data = self.data
        data[1 + bisect_left(BOUNDS, seconds)] += times
        if seconds > 0:
            data[0] += seconds * times

    def take(self) -> list[float]:
        """Return `data` since the last call; empty if nothing was counted."""
        if not any(self.data[1:]):
            return []
        taken, self.data = self.data, _empty()
        return taken


def added(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the data of two histograms together; either may be empty.

    >>> added([], [0.5, *[0] * 9, 1, *[0] * 8])[0]
    0.5
    """
    if not one or not other:
        return list(one or other)
    return [a + b for a, b in zip(one, other, strict=True)]


def _empty() -> list[float]:
    return [0.0] + [0] * (len(BOUNDS) + 1)
