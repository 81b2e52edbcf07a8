"""SavedTask: a task with stores, as the program that ran last noted it in the log; the program itself is not needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock import IncompatibleStateError, Log, Serde, TopicPartition
from penstock.program.layouts import Layouts, layout_from_data

from .changelog_location import noted_location
from .saved_program import Note, read_note


@dataclass(frozen=True)
class SavedTask:
    """A task with stores.

    `partitions`: those that it reads. `layouts`: how its stores are kept, now and before. `identity`: the application's
    incarnation in the log. `changelog`: where the history was when the application started last, without secrets; None
    if it is in the log. `count`: how many tasks its sub-topology has, among which keys are divided. `forms`: by store
    and field, the written forms of its serdes.
    """

    id: str
    partitions: tuple[TopicPartition, ...]
    layouts: Layouts
    identity: str
    changelog: str | None
    count: int = 1
    forms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def check_serdes(self, store: str, serdes: Mapping[str, Serde[Any]]) -> None:
        """Raise IncompatibleStateError where a program's serdes of a store cannot read what is saved, as a start does.

        `serdes` by field: `key_serde` and `value_serde`.
        """
        for name, form in self.forms.get(store, {}).items():
            if name in serdes and (why := serdes[name].unreadable(form)):
                raise IncompatibleStateError(
                    f"store {store!r} was written with {name} {why}: give the program that ran last"
                )


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
            forms = written_forms(note["fingerprint"]["subtopologies"].get(number, {}).get("stores", {}))
            found[task] = SavedTask(task, read, layouts, note["identity"], changelog, counts[number], forms)
    return found


def written_forms(stores: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """Return the written forms of the serdes of stores, from the fingerprint of their program."""
    fields = "key_serde", "value_serde"
    return {
        store: {name: each[name] for name in fields if each.get(name) is not None} for store, each in stores.items()
    }


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
