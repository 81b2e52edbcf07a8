"""The check of a program against the saved state of the last program under its application id; and parked stores."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any

from penstock import (
    Application,
    Assignment,
    ConfigError,
    IncompatibleStateError,
    Lease,
    Log,
    TopicPartition,
    check_compatible,
)
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.epoch import begin_epoch
from penstock.program.compatibility import saved_serdes
from penstock.program.in_flight import PendingRecordSerde
from penstock.program.layouts import Layouts, layout_from_data, layout_to_data
from penstock.store.kept_store import KeptStore, Layout
from penstock.support.names import changelog_topic, did_you_mean, index_name

from .saved_program import ProgramNote, drop_store, read_note, saved_subtopologies

_EARLIER, _EARLIER_BYTES = 100, 200_000
"""Number of earlier layouts of a sub-topology that are kept, and their bytes in the note of the program, of all
sub-topologies together, so that a log takes it; a local copy in an older layout is restored from the changelog."""


def check_saved(
    application: Application, assignment: Assignment, before: ProgramNote, log: Log
) -> tuple[ProgramNote, Application]:
    """Compare the program with `before`, the note of the program that ran last (empty: none did).

    Return the new note, and the application with the layouts of its tasks' state. Raises IncompatibleStateError with
    the reasons when the program does not fit.
    """
    now = application.program.fingerprint(assignment, application.settings)
    before = _without_refilled(application.id, before, now, log)
    note: ProgramNote = {
        "identity": before.get("identity") or secrets.token_hex(8),
        "fingerprint": now,
        "changelog": application.settings.changelog.partition(":")[0],
        "reads": _reads(assignment),
        "lives": before.get("lives", {}),
        "values": "by store",  # no reader looks at it
        "whole_keys": [],  # no other value is written
    }
    reasons: list[str] = []
    if before:
        _check_changelog(application, before)
        old = deepcopy(saved_subtopologies(before))
        parked, back = _park(application.id, before, now, log)
        reasons += _late(application.id, before, back, log)
        reasons += _in_flight(application.id, before, parked, log)
        for name in parked:
            each = old[parked[name]["subtopology"]]
            each["stores"].pop(name, None)
            each["parked"] = [*each.get("parked", ()), name]
        drained = _drained(application.id, before["fingerprint"]["internal_topics"], log)
        reasons += check_compatible(
            {**before["fingerprint"], "subtopologies": old},
            now,
            drained,
            saved_serdes(application.program, application.settings),
        )
        left = {each["subtopology"] for each in parked.values()}
        note["parked"] = parked
        note["gone"] = {
            number: each
            for number, each in saved_subtopologies(before).items()
            if number in left and number not in now["subtopologies"]
        }
    if reasons:
        raise IncompatibleStateError(
            f"application {application.id!r} does not fit what it saved: {'; '.join(reasons)}. Undo the change, or run "
            "it under another application id, which starts afresh, or `penstock reset` it; to give up the content of "
            "single stores, `penstock stores drop`"
        )
    layouts = _layouts(application, before, note)
    note["layouts"] = {
        **before.get("layouts", {}),
        **{
            str(number): {
                "now": layout_to_data(each.now),
                "earlier": _kept(each.earlier, _EARLIER_BYTES // len(layouts)),
            }
            for number, each in layouts.items()
        },
    }
    return note, _with_layouts(application, layouts)


def _without_refilled(application_id: str, before: ProgramNote, now: Mapping[str, Any], log: Log) -> ProgramNote:
    """Return the note without stores that are filled from a topic from now on, and whose saved content is not that.

    These are stores that the program wrote, and parked ones that have missed records of the topic.
    """
    filled = {
        name for each in now["subtopologies"].values() for name, store in each["stores"].items() if "topic" in store
    }
    made, parked = deepcopy(before), before.get("parked", {})
    for number, each in saved_subtopologies(before).items() if before else ():
        for name in filled.intersection(each["stores"]):
            is_late = name in parked and missed(application_id, before, parked[name], log)
            if is_late or "topic" not in each["stores"][name]:
                drop_store(made, number, name)
    return made


def _check_changelog(application: Application, before: Mapping[str, Any]) -> None:
    changelog = application.settings.changelog.partition(":")[0]
    has_state = any(store.logged for subtopology in application.program.subtopologies for store in subtopology.stores)
    if has_state and before["changelog"] != changelog:
        raise IncompatibleStateError(
            f"application {application.id!r} keeps its state's history in the changelog {before['changelog']!r}, and "
            f"setting 'changelog' is {application.settings.shown('changelog')!r} now, where there is none of it: go "
            "back to the other one, or `penstock reset` it"
        )


# ---------------------------------------------------------------- parked stores


def _park(
    application_id: str, before: ProgramNote, now: Mapping[str, Any], log: Log
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the stores that are parked from now on, and the parked stores that the program names again."""
    named = {name for each in now["subtopologies"].values() for name in each["stores"]}
    were = before.get("parked", {})
    parked = {name: each for name, each in were.items() if name not in named}
    back = {name: each for name, each in were.items() if name in named}
    for number, each in before["fingerprint"]["subtopologies"].items():
        for name, store in each["stores"].items():
            if name not in named:
                upstream = _upstream(before, number)
                positions = _positions(application_id, _read_by(before, upstream), log)
                parked[name] = {"subtopology": number, "store": store, "positions": positions, "upstream": upstream}
    return parked, back


def _late(application_id: str, before: ProgramNote, back: Mapping[str, Any], log: Log) -> Iterable[str]:
    """Return a reason for each parked store that is named again and has missed records."""
    for name, each in back.items():
        if not each.get("accepted") and (moved := missed(application_id, before, each, log)):
            yield (
                f"store {name!r} was parked while the program did not name it, and it has missed what was processed "
                f"since ({', '.join(moved)}): "
                "`penstock stores accept` takes it back as it was then, `penstock stores drop` lets it start empty"
            )


def _in_flight(application_id: str, before: ProgramNote, parked: Mapping[str, Any], log: Log) -> Iterable[str]:
    """Return a reason for each store of records in flight that is parked from now on, and has some."""
    for name, each in parked.items():
        number = each["subtopology"]
        is_new = name not in before.get("parked", {})
        if is_new and str(each["store"].get("value_serde")).startswith(PendingRecordSerde.__name__ + "("):
            calling = [task for task, state in _engine_states(application_id, before, number, log) if "calls" in state]
            if calling:
                yield (
                    f"store {name!r} has records in flight (task {', '.join(calling)}), whose calls this program does "
                    "not make: run the program before it until they have their results, for instance with "
                    "trigger='available_now', or give them up with `penstock stores drop`"
                )


def _engine_states(
    application_id: str, note: ProgramNote, number: str, log: Log
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the id and the engine's state of each task of a sub-topology that has committed."""
    topics, known = _read_by(note, [number]), log.topics()
    for task in range(max(map(len, topics.values()), default=0)):
        name = f"{number}_{task}"
        inputs = [TopicPartition(each, task) for each, of in topics.items() if task < len(of) and each in known]
        commit = log.visible_commit(application_id, name, inputs)
        if commit is not None and commit.engine_state:
            yield name, json.loads(commit.engine_state)


def missed(application_id: str, note: ProgramNote, parked: Mapping[str, Any], log: Log) -> list[str]:
    """Return the progress of the tasks upstream of a parked store without it, as text for each partition.

    Topics that they did not read before are included.
    """
    were = {**_read_by(note, parked["upstream"]), **parked["positions"]}
    positions = _positions(application_id, were, log)
    return [
        f"{topic}-{partition} from {at or 0} to {positions[topic][partition]}"
        for topic, numbers in were.items()
        for partition, at in enumerate(numbers)
        if (positions[topic][partition] or 0) != (at or 0)
    ]


def _upstream(note: ProgramNote, number: str) -> list[str]:
    """Return the numbers of a sub-topology and the ones upstream of it."""
    subtopologies = note["fingerprint"]["subtopologies"]
    wanted, found = [number], []
    while wanted:
        found.append(wanted.pop())
        read = set(subtopologies[found[-1]]["topics"])
        wanted += [
            other
            for other, each in subtopologies.items()
            if other not in (*found, *wanted) and read.intersection(each["writes"])
        ]
    return found


def _read_by(note: ProgramNote, numbers: Iterable[str]) -> dict[str, list[int | None]]:
    """Return the topics that sub-topologies read, each with None for each of its partitions."""
    counts = note["fingerprint"]["partitions"]
    topics = sorted({topic for number in numbers for topic in note["reads"].get(number, ())})
    return {topic: [None] * counts[topic] for topic in topics}


def _positions(application_id: str, topics: Mapping[str, list[int | None]], log: Log) -> dict[str, list[int | None]]:
    known = log.topics()
    partitions = [
        TopicPartition(topic, number)
        for topic, numbers in topics.items()
        for number in range(len(numbers))
        if topic in known
    ]
    committed = log.committed(application_id, partitions) if partitions else {}
    return {
        topic: [committed.get(TopicPartition(topic, number)) for number in range(len(numbers))]
        for topic, numbers in topics.items()
    }


# ---------------------------------------------------------------- layouts


def _layouts(application: Application, before: Mapping[str, Any], note: Mapping[str, Any]) -> dict[int, Layouts]:
    """Return the layouts of each sub-topology's tasks."""
    found = {}
    for subtopology in application.program.subtopologies:
        number = str(subtopology.id)
        now = {
            store.name: replace(
                KeptStore.of(store, application.settings.store_backend), generation=note["lives"].get(store.name, 0)
            )
            for store in subtopology.stores
        }
        saved = before.get("layouts", {}).get(number)
        if saved is not None:
            last = Layouts(
                layout_from_data(saved["now"]),
                {name: layout_from_data(layout) for name, layout in saved["earlier"].items()},
            )
            found[subtopology.id] = last.followed_by(_following(last.now, now, number, note.get("parked", {})))
        else:
            found[subtopology.id] = Layouts(now)
    return found


def _kept(earlier: Mapping[str, Layout], most_bytes: int) -> dict[str, Any]:
    """Return the last of the earlier layouts as data; the very last one always."""
    kept: list[tuple[str, Any]] = []
    for name, layout in list(earlier.items())[: -_EARLIER - 1 : -1]:
        data = layout_to_data(layout)
        most_bytes -= len(json.dumps(data))
        if kept and most_bytes < 0:
            break
        kept.append((name, data))
    return dict(reversed(kept))


def _following(
    before: Layout, now: Mapping[str, KeptStore], number: str, parked: Mapping[str, Any]
) -> dict[str, KeptStore]:
    followed = {name: before[name].followed_by(kept) if name in before else kept for name, kept in now.items()}
    kept = {name: before[name] for name, each in parked.items() if each["subtopology"] == number and name in before}
    layout = {**followed, **kept}
    for name, each in layout.items():
        if each.has_index and index_name(name) in layout:
            raise IncompatibleStateError(
                f"store {index_name(name)!r}: the index of store {name!r} is kept under this name; choose another"
            )
    return layout


def _with_layouts(application: Application, layouts: Mapping[int, Layouts]) -> Application:
    made = copy(application)
    made.program = replace(
        application.program,
        subtopologies=tuple(
            replace(subtopology, layouts=layouts[subtopology.id]) for subtopology in application.program.subtopologies
        ),
    )
    return made


# ---------------------------------------------------------------- topics


def _reads(assignment: Assignment) -> dict[str, list[str]]:
    """Return the topics that each sub-topology reads, by their names in the log."""
    found: dict[str, set[str]] = {}
    for task, partitions in assignment.tasks.items():
        found.setdefault(str(task.subtopology), set()).update(partition.topic for partition in partitions)
    return {number: sorted(topics) for number, topics in found.items()}


def _drained(application_id: str, topics: Iterable[str], log: Log) -> list[str]:
    """Return the internal topics whose records have all been processed."""
    infos = log.topics()
    names = {topic: f"{application_id}-{topic}" for topic in topics}
    return [
        topic
        for topic, name in names.items()
        if name not in infos or not waiting_records(application_id, name, infos[name].partitions, log)
    ]


def waiting_records(application_id: str, topic: str, partitions: int, log: Log) -> int:
    """Return the number of unprocessed records of an internal topic."""
    each = [TopicPartition(topic, number) for number in range(partitions)]
    committed, starts, ends = log.committed(application_id, each), log.start_offsets(each), log.end_offsets(each)
    positions = {one: starts[one] if (at := committed[one]) is None else at for one in each}
    return sum(max(0, ends[one] - positions[one]) for one in each)


@dataclass(frozen=True)
class SavedStore:
    """A saved store.

    `parked`: the program that ran last did not name it. `missed`: progress of its tasks since, as text. `accepted`: an
    operator allowed its return.
    """

    name: str
    subtopology: int
    backend: str
    logged: bool
    parked: bool
    missed: tuple[str, ...]
    accepted: bool


def saved_stores(application_id: str, log: Log) -> list[SavedStore]:
    """Return the stores of the program that ran last, and parked ones; none if none ran."""
    note = read_note(application_id, log)
    parked = note.get("parked", {})
    found = []
    for number, each in saved_subtopologies(note).items() if note else ():
        for name in each["stores"]:
            kept, aside = note["layouts"][number]["now"][name], parked.get(name)
            found.append(
                SavedStore(
                    name,
                    int(number),
                    kept["backend"],
                    kept["logged"],
                    aside is not None,
                    () if aside is None else tuple(missed(application_id, note, aside, log)),
                    aside is not None and aside.get("accepted", False),
                )
            )
    return sorted(found, key=lambda each: (each.subtopology, each.name))


def accept_stores(application_id: str, log: Log, lease: Lease, names: Sequence[str]) -> None:
    """Allow parked stores to continue with their old content, whatever they have missed.

    Raises ConfigError for a store that is not parked, and FencedError if the application's lease was lost; then nothing
    has changed.
    """
    note = read_note(application_id, log)
    parked = note.get("parked", {})
    for name in names:
        _check_known(application_id, name, list(parked), "parked store")
        parked[name]["accepted"] = True
    begin_epoch(application_id, lease)
    notes.PROGRAM.write(application_id, lease, note)


def drop_stores(application: Application, log: Log, lease: Lease, names: Sequence[str]) -> None:
    """Drop the content of stores: a store of such a name starts empty from now on, on every machine.

    This is one write to the log. The tasks delete their content when they are opened next. Raises ConfigError for a
    store that the application did not save, and FencedError when the application's lease was lost.
    """
    note = read_note(application.id, log)
    known = (
        {name: number for number, each in saved_subtopologies(note).items() for name in each["stores"]} if note else {}
    )
    for name in names:
        _check_known(application.id, name, list(known), "store")
        drop_store(note, known[name], name)
    begin_epoch(application.id, lease)
    notes.PROGRAM.write(application.id, lease, note)
    # If this process is killed before a topic is deleted, the tasks empty that topic.
    topics = log.topics()
    for topic in (changelog_topic(application.id, name) for name in names):
        if topic in topics and topics[topic].internal:
            lease.renew()
            log.delete_topic(topic)


def _check_known(application_id: str, name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        advice = did_you_mean(name, known) or f"it has: {', '.join(sorted(known)) or 'none'}"
        raise ConfigError(f"application {application_id!r} has no {what} {name!r}; {advice}")
