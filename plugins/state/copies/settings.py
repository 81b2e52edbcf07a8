"""The settings of standbys."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from penstock import ConfigError, Setting
from penstock.settings.types import SettingType, function, optional, whole_number

NUM_STANDBY_REPLICAS = Setting(
    "num_standby_replicas",
    whole_number(0, expected="a number of copies, 0 for none"),
    0,
    "How many warm copies of each task's stores are kept on other machines. Embedded engine: with 1 or more, each run "
    "that waits (`--wait`) keeps copies of all tasks, and takes over with them. Spark on a cluster: task hosts keep "
    "copies of tasks that run on other machines, and a slot whose executor is lost goes there.",
)


def _check_racks(setting: str, value: Any) -> str:
    """Return the text as it is given. Raises ConfigError unless each part of it is PATTERN=RACK."""
    if not isinstance(value, str) or not all(all(each) for each in _rules(value)):
        raise ConfigError(
            f"{setting}: expected PATTERN=RACK with commas between, such as 'node-a*=a, node-b*=b', found {value!r}"
        )
    return value


def _rules(racks: str) -> list[tuple[str, str]]:
    parts = (each.partition("=") for each in racks.split(","))
    return [(pattern.strip(), rack.strip()) for pattern, _, rack in parts]


def rack_of(racks: str | None, machine: str) -> str:
    """Return the rack of a machine by the setting `racks`: that of the first pattern that fits its name; "" if none.

    >>> rack_of("node-a*=a, *=b", "node-a7"), rack_of("node-a*=a, *=b", "node-c1"), rack_of(None, "node-a7")
    ('a', 'b', '')
    """
    return next((rack for pattern, rack in _rules(racks or "") if fnmatchcase(machine, pattern)), "")


RACKS = Setting(
    "racks",
    optional(SettingType(_check_racks)),
    None,
    "In which rack, or zone, each machine of the cluster is: PATTERN=RACK with commas between, where the first pattern "
    "that fits the name by which Spark knows the machine decides, such as `10.0.1.*=a, 10.0.2.*=b`. Copies of a task's "
    "stores (`num_standby_replicas`) are kept in other racks than the task, each in another one, as far as there are "
    "racks.",
)
STANDBY_LISTENER = Setting(
    "standby_listener",
    optional(function(("event",))),
    None,
    "Called with a RestoreEvent when a standby of a task begins, after each portion that it writes, and when it is "
    "suspended.",
)
