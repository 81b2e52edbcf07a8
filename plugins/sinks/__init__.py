"""Targets outside of the log that come with penstock: one in memory, for tests. PostgreSQL is in contrib."""

from collections.abc import Mapping

from penstock import hookimpl


@hookimpl
def penstock_sinks() -> Mapping[str, str]:
    """Name the sinks."""
    return {"memory": "penstock.plugins.sinks.memory:MemorySink"}
