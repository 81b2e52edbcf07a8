"""Logs that need no server: topics, positions and commits in this process (`memory`) or on this host (`local`)."""

from __future__ import annotations

from penstock.hooks import Components, hookimpl


@hookimpl
def penstock_logs() -> Components:
    """Name the logs."""
    return {
        "memory": "penstock.plugins.logs.memory:MemoryLog",
        "local": "penstock.plugins.logs.local:LocalLog",
    }
