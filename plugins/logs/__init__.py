"""Logs: topics, positions and commits in this process (`memory`), on this host (`local`), or on Kafka (`kafka`)."""

from __future__ import annotations

from penstock import Components, hookimpl


@hookimpl
def penstock_logs() -> Components:
    """Name the logs."""
    return {
        "memory": "penstock.plugins.logs.memory:MemoryLog",
        "local": "penstock.plugins.logs.local:LocalLog",
        "kafka": "penstock.plugins.logs.kafka.log:KafkaLog",
    }


@hookimpl
def penstock_settings_vocabularies() -> Components:
    """Return the names of Kafka's clients."""
    return {"librdkafka": "penstock.plugins.logs.kafka.client_names:NAMES"}
