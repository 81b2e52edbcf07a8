"""SavedTask: a task with stores, as the program that ran last noted it in the log; the program itself is not needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from penstock import Log, TopicPartition
from penstock.plugins.upgrade.saved_program import Note, read_note
from penstock.program.layouts import Layouts, layout_from_data

from .changelog_location import noted_location


@dataclass(frozen=True)
class SavedTask:
    """A task with stores.

    `partitions`: those that it reads. `layouts`: how its stores are kept, now and before. `identity`: the application's
    incarnation in the log. `changelog`: where the history was when the application started last, without secrets; None
    if it is in the log. `count`: how many tasks its sub-topology has, among which keys are divided.
    """

    id: str
    partitions: tuple[TopicPartition, ...]
    layouts: Layouts
    identity: str
    changelog: str | None
    count: int = 1


def saved_tasks(application_id: str, log: Log) -> Mapping[str, SavedTask]:
    """Return the tasks with stores of an application that has run, by id; none if it has not.

    Raises IncompatibleStateError if another version of penstock saved them in a form that this one does not read.
    """
    note = read_note(application_id, log)
    if not note:
        return {}
    changelog = noted_location(application_id, log, note["identity"])
    found, partitions = {}, task_partitions(note)
    counts = Counter(task.partition("_")[0] for task in partitions)
    for task, read in partitions.items():
        number = task.partition("_")[0]
        layouts = saved_layouts(note, number)
        if layouts.now:
            found[task] = SavedTask(task, read, layouts, note["identity"], changelog, counts[number])
    return found


def task_partitions(note: Note) -> Mapping[str, tuple[TopicPartition, ...]]:
    """Return the partitions that each task of the saved program reads, also those of tasks without stores."""
    found = {}
    for number, topics in sorted(note["reads"].items(), key=lambda each: int(each[0])):
        counts = {topic: note["fingerprint"]["partitions"][topic] for topic in topics}
        for partition in range(max(counts.values(), default=0)):
            read = tuple(TopicPartition(topic, partition) for topic in topics if partition < counts[topic])
            found[f"{number}_{partition}"] = read
    return found


def saved_layouts(note: Note, number: str) -> Layouts:
    """Return how the tasks of a sub-topology keep their stores, now and before."""
    saved = note["layouts"].get(number, {"now": {}, "earlier": {}})
    earlier = {name: layout_from_data(layout) for name, layout in saved["earlier"].items()}
    return Layouts(layout_from_data(saved["now"]), earlier)
