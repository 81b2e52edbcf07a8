"""Serves the counts of a run to Prometheus. Imports the runtime, and prometheus-client only where it is asked for."""

from __future__ import annotations

from .endpoint import metrics_endpoint

__all__ = ["metrics_endpoint"]
