"""SlotPlan: what one batch asks of the task host of one slot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock import TopicPartition
from penstock.plugins.engine.task.fronts import UNKNOWN
from penstock.task.progress import Front
from penstock.task.visits import Visit

Offsets = Mapping[TopicPartition, int]

SILENT, STUCK = "silent", "stuck"
"""Why a host seems to be dead: it sends no heartbeats, or its tasks make no turn; then with its process behind it."""
STUCK_SECONDS = 300.0
"""A host whose tasks made no turn for so long counts as dead, as Kafka's `max.poll.interval.ms`."""


@dataclass(frozen=True)
class SlotPlan:
    """A batch of one slot.

    `owner` is the identity of the executor that has the slot; "" lets any executor take it. `clock_ms` is the batch's
    wall clock. `ends` has, for each task with work, the offsets up to which it reads its input partitions.
    `global_ends` has those of the topics of global stores, and `topic_ids` the ids of these topics. The host also runs
    open tasks that are not in `ends` if a wall-clock punctuator is due, or if their commit expires.

    In continuous mode a batch is a renewal, and `ends` only names the tasks. `step`: a test's step, -1 without steps;
    then `ends` has offsets there, too. `stopping`: commit and close all tasks. `suspect`: why the host seems to be
    dead (`SILENT`, or `STUCK` and the number of its process, "stuck 123"); "" if it does not. `seconds`: for how long
    the tasks read together; what is left then is for the next batch. None: up to the ends. `restore_seconds`: for
    how long the batch waits for tasks whose state is restored; None: until that is done, because no batch may follow.
    `is_settled`: every task of the application is open, so that local state which nobody uses belongs to tasks that
    have moved away. `standbys`: the tasks of other slots of which the host keeps warm copies.
    `paused`: the sub-topologies whose tasks are opened and commit, but process no records and call no punctuators.
    `left`: how many records of the slot's tasks were left behind `ends` when the batch was planned. `starts`: where the
    batch begins to read partitions of tasks that were not open, or have not committed.
    `visits`: the visits that were asked for. `fronts`: by sub-topology, or by task where it is another one than that
    of the sub-topology, how far everything in front of the task is read once it has read up to `ends` (`Front`).
    """

    slot: int
    owner: str
    clock_ms: int
    ends: Mapping[str, Offsets] = field(default_factory=dict)
    global_ends: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    step: int = -1
    left: int = 0
    starts: Offsets = field(default_factory=dict)
    stopping: bool = False
    suspect: str = ""
    seconds: float | None = None
    restore_seconds: float | None = None
    is_settled: bool = False
    standbys: Sequence[str] = ()
    paused: Sequence[int] = ()
    visits: Sequence[Visit] = ()
    fronts: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def front_of(self, task: str) -> Front:
        """Return how far everything in front of a task is read once it has read up to `ends`."""
        time, read, is_last = (*self.fronts.get(task, self.fronts.get(task.partition("_")[0], UNKNOWN)), 0, 0)[:3]
        return Front(time, read, bool(is_last))

    def to_json(self) -> str:
        """Return this as text."""
        data = {
            **vars(self),
            "ends": {task: offsets_to_json(ends) for task, ends in self.ends.items()},
            "global_ends": offsets_to_json(self.global_ends),
            "starts": offsets_to_json(self.starts),
            "topic_ids": dict(self.topic_ids),
        }
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> SlotPlan:
        """Return the plan that `to_json` wrote."""
        data = json.loads(text)
        data["ends"] = {task: offsets_from_json(ends) for task, ends in data["ends"].items()}
        data["global_ends"] = offsets_from_json(data["global_ends"])
        data["starts"] = offsets_from_json(data["starts"])
        data["visits"] = tuple(Visit(*each) for each in data["visits"])
        return cls(**data)


def offsets_to_json(offsets: Offsets) -> list[list[Any]]:
    """Return offsets as data for JSON."""
    return [[topic, partition, offset] for (topic, partition), offset in offsets.items()]


def offsets_from_json(data: list[list[Any]]) -> dict[TopicPartition, int]:
    """Return the offsets that `offsets_to_json` made."""
    return {TopicPartition(topic, partition): offset for topic, partition, offset in data}
