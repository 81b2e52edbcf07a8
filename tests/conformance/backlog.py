"""Cases whose inputs wait in the log at every start: records of several topics, to be read by their timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from .runner import Case, application_of, changed

Op = dict[str, Any]
KEEP_ATTRIBUTES = ("papi_metadata", "papi_punctuate")
"""Topologies whose processors count in attributes, which a start resets."""


def with_backlog(case: Case, count: int) -> Case | None:
    """Return a case in which up to `count` records wait for each start, with the test driver's answers.

    None where the answers depend on more than the order of timestamps: on commits (a record cache), on what another
    task has done meanwhile, on how far a global store is filled, or on a processor's attributes.
    """
    config = case.get("config", {})
    if config.get("cache_max_bytes") or config.get("timestamp_extractor") or case["topology"] in KEEP_ATTRIBUTES:
        return None
    program = application_of(case).program
    if program.internal_topics or len(program.subtopologies) != 1 or program.global_stores:
        return None
    order = [topic for source in program.subtopologies[0].sources for topic in source.topics]
    if len({op["topic"] for op in case["inputs"] if op["op"] == "pipe"} & set(order)) < 2:
        return None
    return changed(case, list(_backlogs(case["inputs"], order, count)), f"{count} at every start")


def _backlogs(inputs: Iterable[Op], order: list[str], count: int) -> Iterator[Op]:
    for is_pipe, ops in groupby(inputs, lambda op: op["op"] == "pipe"):
        left = list(ops)
        if not is_pipe:
            yield from left
        while is_pipe and left:
            yield {"op": "backlog", "records": _by_time(left[:count], order)}
            left = left[count:]


def _by_time(records: list[Op], order: list[str]) -> list[Op]:
    """Return records as a task takes them: the lowest timestamp that is next in a topic, then the first source."""
    waiting = {topic: [each for each in records if each["topic"] == topic] for topic in order}
    taken: list[Op] = []
    while len(taken) < len(records):
        heads = [(left[0]["ts"], order.index(topic), topic) for topic, left in waiting.items() if left]
        taken.append(waiting[min(heads)[2]].pop(0))
    return taken
