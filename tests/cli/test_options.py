"""Settings as NAME=VALUE."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import skip
from penstock.errors import ConfigError
from penstock.plugins.operate.cli.options import find_layer
from penstock.program.extractors import wall_clock_timestamp
from penstock.settings.names import MAPPINGS
from penstock.settings.settings import Settings
from penstock.settings.sources import options_layer

from .console import Console


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("commit_interval=5s", {"commit_interval": "5s"}),
        ("commit-bytes=1_000", {"commit_bytes": 1000}),
        ("max_records_per_batch=None", {"max_records_per_batch": None}),
        ("max_records_per_batch=7", {"max_records_per_batch": 7}),
        ("max_task_idle=none", {"max_task_idle": None}),
        ("store_backend=memory", {"store_backend": "memory"}),
        ("value_serde=json", {"value_serde": "json"}),
        ("processing_handler=skip", {"processing_handler": skip}),
        ("timestamp_extractor=wall_clock_timestamp", {"timestamp_extractor": wall_clock_timestamp}),
        ("user.limit=0.5", {("user", "limit"): 0.5}),
        ("user.name=a=b", {("user", "name"): "a=b"}),
        ("log=local:a=b", {"log": "local:a=b"}),
    ],
)
def test_values_get_the_type_of_their_setting(text: str, expected: dict[str, Any]) -> None:
    assert options_layer([text]).values == expected


def test_every_setting_can_be_set_to_its_default() -> None:
    for name, default in Settings().by_name.items():
        if name in MAPPINGS:
            continue
        text = ",".join(default) if isinstance(default, tuple) else getattr(default, "__name__", str(default))
        assert Settings.of(options_layer([f"{name}={text}"])).by_name[name] == default


def test_a_function_of_ones_own_can_be_named(console: Console) -> None:
    console.write("mine.py", "def handler(failure):\n    return None\nnumber = 1\n")
    assert find_layer(given=["processing_handler=mine:handler"]).values["processing_handler"].__name__ == "handler"
    with pytest.raises(ConfigError, match="mine:number is of type int; expected a function"):
        find_layer(given=["processing_handler=mine:number"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("commit_interval", "expected NAME=VALUE"),
        ("=5", "expected NAME=VALUE"),
        ("comit_interval=5s", "--set comit_interval: unknown setting 'comit_interval'; did you mean 'commit_interval'"),
        ("zzz=5s", "unknown setting 'zzz'; known: data_dir, log"),
        ("commit_bytes=many", "expected a whole number above 0, found 'many'"),
        ("commit_bytes=none", "expected a whole number above 0, found 'none'"),
        ("processing_handler=ignore", "expected one of fail, skip, or MODULE:ATTR"),
        ("user=5", r"user\.NAME=VALUE"),
    ],
)
def test_what_does_not_fit_is_said(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options_layer([text])


def test_values_are_checked_by_the_settings_themselves() -> None:
    with pytest.raises(ConfigError, match="'commit_interval'.*a bare number does not say its unit"):
        Settings.of(options_layer(["commit_interval=5"]))
