"""Vocabularies of settings: names that users know from elsewhere; may import core."""

from __future__ import annotations

from penstock.hooks import Components, hookimpl


@hookimpl
def penstock_settings_vocabularies() -> Components:
    """Return Kafka Streams' names."""
    return {"kafka_streams": "penstock.plugins.settings.kafka_streams:NAMES"}
