"""What a visit leaves in the topics and stores of a program, to compare two runs of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock import Application, ConfigError, Record
from penstock.plugins.applications.visits import program_visitors

from ..driver import TopologyTestDriver

Visit = tuple[str, Any]
"""A visitor, NODE.METHOD, and the argument of its visit."""


def visits_of(application: Application, arguments: Mapping[str, Any]) -> list[Visit]:
    """Return a visit for each visitor of a program. Raises ConfigError where one lacks its argument, or has none."""
    visitors = program_visitors(application)
    wanted = sorted(name for name, (_, each) in visitors.items() if each.takes_argument)
    if sorted(arguments) != wanted:
        raise ConfigError(
            f"ProcessorContract: the visitors {wanted} of the program take an argument: let `visit_arguments` be a "
            f"mapping of them to JSON data, found {dict(arguments)}"
        )
    return [(name, arguments.get(name)) for name in sorted(visitors)]


def answers_by_key(driver: TopologyTestDriver, topics: Sequence[str], by_partition: bool) -> dict[str, object]:
    """Return the records of topics by topic and key, in order where a partition's answers are in one order."""
    found: dict[str, list[Record]] = {}
    for topic in topics:
        for record in driver.read_all(topic):
            found.setdefault(f"topic {topic}, key {record.key!r}", []).append(record)
    return {name: records if by_partition else sorted(records, key=repr) for name, records in found.items()}


def stored(driver: TopologyTestDriver) -> dict[str, object]:
    """Return the rows of logged stores as bytes, by store, task and key."""
    process = driver._processes.running(looking=True)
    found: dict[str, object] = {}
    for task, partitions in driver._tasks.items():
        driver._stores(process, task)
        state = process.worker(task, partitions, len(driver._tasks))._state
        assert state is not None, f"task {task} is not open after a look into it"
        found |= {f"store {store}, task {task}, row {key!r}": value for store, key, value in state.rows()}
    return found
