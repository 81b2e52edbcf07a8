"""Lets a topic of a log in memory grow, as Kafka's tools do."""

from __future__ import annotations

from dataclasses import replace

from penstock.plugins.logs.memory import MemoryLog, MemoryPartition
from penstock.plugins.logs.partitioner import Partitioner


def grow(log: MemoryLog, topic: str, partitions: int) -> None:
    """Give a topic more partitions; its records stay where they are."""
    found = log._topics[topic]
    found.partitions += [MemoryPartition() for _ in range(partitions - found.info.partitions)]
    found.info, found.partitioner = replace(found.info, partitions=partitions), Partitioner(partitions)
