"""Flow: where a stream or a table comes from."""

from __future__ import annotations

from dataclasses import dataclass

from .serdes import Serdes
from .step import Step


@dataclass(frozen=True)
class Flow:
    """Where a stream or table comes from: the step that makes its records, their serdes, and the sources above it.

    `needs_repartition`: a verb may have changed keys, so equal keys may be in different partitions.
    """

    step: Step
    serdes: Serdes
    sources: frozenset[str]
    needs_repartition: bool = False
