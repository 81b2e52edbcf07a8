"""Made input: keys that some users send far more often than others."""

from __future__ import annotations

import numpy as np


def zipf_keys(records: int, keys: int, seed: int = 7) -> list[bytes]:
    """Return `records` keys of 9 bytes, drawn from `keys` distinct ones by Zipf's law (exponent 1), as the peers'
    programs are given."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, keys + 1)
    cumulative = np.cumsum(weights / weights.sum())
    ranks = np.minimum(np.searchsorted(cumulative, rng.random(records)), keys - 1)
    names = rng.permutation(keys)
    distinct = [b"u%08d" % name for name in names]
    return [distinct[rank] for rank in ranks.tolist()]


def spread_times(
    records: int, span_ms: int, late_ms: int, *, last_ms: int = 1_700_000_000_000, seed: int = 11
) -> list[int]:
    """Return `records` timestamps that move on evenly over `span_ms` up to `last_ms`; each is up to `late_ms` late."""
    due = last_ms - span_ms + np.arange(records) * span_ms // records
    late = np.random.default_rng(seed).integers(0, late_ms + 1, records)
    return [int(each) for each in (due - late).tolist()]
