"""The settings of the endpoint for Prometheus, and of reporters of metrics."""

from __future__ import annotations

from typing import Any

from penstock import ConfigError, PluginError, Setting
from penstock.hooks import registry
from penstock.settings.types import DURATION, SettingType, optional, text, whole_number
from penstock.support.packages import check_installed


def reporter_names(text: str) -> list[str]:
    """Return the names of reporters in the text of the setting `metrics_reporters`."""
    return [name for each in text.split(",") if (name := each.strip())]


def _installed(setting: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{setting}: expected names of metrics reporters with commas between, found {value!r}")
    for name in reporter_names(value):
        try:
            registry().find("metrics reporter", name)
        except PluginError as error:
            raise PluginError(f"{setting}: {error}") from error
    return value


def _needs_prometheus(port: int | None) -> None:
    if port:
        check_installed("setting 'metrics_port'", "metrics", "prometheus_client")


def _needs_reporters(names: str) -> None:
    for name in reporter_names(names):
        registry().load("metrics reporter", name)


METRICS_PORT = Setting(
    "metrics_port",
    optional(whole_number(0, 65_535, "a port, or 0 or None for none")),
    None,
    "The port on which the driver of a run serves its counts to Prometheus; None or 0: it does not.",
    _needs_prometheus,
)
METRICS_HOST = Setting(
    "metrics_host",
    text("a host's name or address"),
    "127.0.0.1",
    "The address that `metrics_port` is opened on; `0.0.0.0` for all of the host's.",
)
METRICS_REPORTERS = Setting(
    "metrics_reporters",
    SettingType(_installed),
    "",
    "Names of installed reporters that get the metrics of a run, with commas between.",
    _needs_reporters,
)
METRICS_INTERVAL = Setting("metrics_interval", DURATION, "10s", "The time between two reports of `metrics_reporters`.")
