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
