"""Logs: topics, positions and commits in this process (`memory`), on this host (`local`), or in a Kafka cluster (`kafka`)."""

from __future__ import annotations

from penstock.hooks import Components, hookimpl


@hookimpl
def penstock_logs() -> Components:
    """Name the logs."""
    return {
        "memory": "penstock.plugins.logs.memory:MemoryLog",
        "local": "penstock.plugins.logs.local:LocalLog",
        "kafka": "penstock.plugins.logs.kafka:KafkaLog",
    }
