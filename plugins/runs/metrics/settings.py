"""The settings of the endpoint for Prometheus."""

from __future__ import annotations

from penstock import Setting
from penstock.settings.types import optional, text, whole_number

METRICS_PORT = Setting(
    "metrics_port",
    optional(whole_number(0, 65_535, "a port, or 0 or None for none")),
    None,
    "The port on which the driver of a run serves its counts to Prometheus; None or 0: it does not.",
)
METRICS_HOST = Setting(
    "metrics_host",
    text("a host's name or address"),
    "127.0.0.1",
    "The address that `metrics_port` is opened on; `0.0.0.0` for all of the host's.",
)
