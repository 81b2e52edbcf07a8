"""The settings of standbys."""

from __future__ import annotations

from penstock import Setting
from penstock.settings.types import function, optional, whole_number

NUM_STANDBY_REPLICAS = Setting(
    "num_standby_replicas",
    whole_number(0, expected="a number of copies, 0 for none"),
    0,
    "How many warm copies of each task's stores are kept on other machines. Embedded engine: with 1 or more, each run "
    "that waits (`--wait`) keeps copies of all tasks, and takes over with them. Spark on a cluster: task hosts keep "
    "copies of tasks that run on other machines, and a slot whose executor is lost goes there.",
)
STANDBY_LISTENER = Setting(
    "standby_listener",
    optional(function(("event",))),
    None,
    "Called with a RestoreEvent when a standby of a task begins, after each portion that it writes, and when it is "
    "suspended.",
)
