"""Letters: dead letters as the pages show them, and their replay."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import closing
from itertools import chain
from typing import Any

from penstock import Application, Log, PenstockError, TopicPartition
from penstock.plugins.engine.program.dead_letters import (
    ApplicationTargets,
    Letter,
    Replayed,
    Selection,
    Targets,
    batches_from,
    letters_in,
    partitions_of,
    replay,
    replayed,
)
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.state.queries.http.guard import Refused
from penstock.settings.dead_letters import dead_letter_topics
from penstock.settings.settings import HANDLERS

from . import watch
from .store_views import shown
from .views import Context, Given, link, moment, number

MOST_REPLAYED = 1_000
"""How many letters one request replays at most."""
_ON_A_PAGE = 50
"""How many offsets of each partition are read for a page."""

_log = logging.getLogger("penstock.console")


class Letters:
    """Reads and replays the dead letters of an application. `hides`: records and messages are not shown."""

    def __init__(self, application: Application, *, hides: bool) -> None:
        settings = application.with_settings(task_timeout=watch.LOG_TIMEOUT).settings
        self._application = application
        self._settings = settings
        self._hides = hides
        self._topics = dead_letter_topics(getattr(settings, name) for name in HANDLERS)

    def page(self, given: Given) -> Context:
        """Return the latest letters of a topic, or of one partition before an offset."""
        topic = given.get("topic") or next(iter(self._topics), "")
        context: Context = {
            "topics": self._topics,
            "topic": topic,
            "given": {name: given.get(name, "") for name in ("partition", "before")},
            "letters": [],
            "links": [],
            "hides": self._hides,
            "most_replayed": f"{MOST_REPLAYED:,}",
            "done": _said(number(given, "sent"), number(given, "held")) if given.get("sent") else None,
            "refused": None,
        }
        if not self._topics:
            return context
        self._check(topic)
        partition = number(given, "partition", -1)
        selection = Selection(partition=None if partition < 0 else partition)
        try:
            with closing(open_log(self._settings)) as log:
                found = _latest(log, topic, selection, number(given, "before", -1))
                done = replayed(log, topic)
                targets = ApplicationTargets(self._application, log)
        except PenstockError as error:
            return {**context, **_refused(error)}
        letters = sorted(chain.from_iterable(found.values()), key=lambda each: -each.timestamp)
        context["letters"] = [self._shown(each, done[each.partition], targets) for each in letters]
        for one, rows in found.items():
            first = rows[0].offset if rows else 0
            if first:
                href = link("dead-letters", topic=topic, partition=one, before=first)
                context["links"].append((f"Before {first:,} of partition {one}", href))
        return context

    def replay(self, given: Given) -> tuple[int, int]:
        """Send one letter, or all that were not replayed, back to where they were read.

        Returns how many were sent, and how many wait because their topic is gone, refuses them, or is none that the
        application reads.

        Raises Refused for a request that names no letter, and PenstockError.
        """
        topic, partition, offset = given.get("topic", ""), number(given, "partition", -1), number(given, "offset", -1)
        self._check(topic)
        names_one = "partition" in given or "offset" in given
        if names_one and (partition < 0 or offset < 0):
            raise Refused(400, "bad_request", "Expected the partition and the offset of a letter.")
        selection = Selection(partition=partition, first=offset, last=offset) if names_one else Selection()
        with closing(open_log(self._settings)) as log:
            targets = ApplicationTargets(self._application, log)
            done = replay(log, topic, selection, limit=MOST_REPLAYED, targets=targets)
        sent = sum(each.records for each in done.sent)
        _log.info("the console replayed %d dead letters of %s", sent, topic)
        for (name, why), count in done.held.items():
            _log.warning("%d dead letters of %s cannot go back to topic %r: %s", count, topic, name, why)
        return sent, sum(done.held.values())

    def _check(self, topic: str) -> None:
        if topic not in self._topics:
            raise Refused(404, "unknown_topic", "No handler of the application names this dead-letter topic.")

    def _shown(self, letter: Letter, done: Replayed, targets: Targets) -> dict[str, Any]:
        note = letter.note
        exception = letter.exception
        if self._hides and exception:
            # Somebody else's client may have written more than the name.
            exception = next(iter(exception.split()), None)
        facts: list[tuple[str, str]] = [("offset", f"partition {letter.partition}, offset {letter.offset}")]
        if note is not None:
            read = f"{note.topic} partition {note.partition} offset {note.offset}" if note.topic else "no record"
            facts += [("read from", read), ("exception", exception or "-")]
        if not self._hides:
            facts += [("message", (note.message if note is not None else None) or "-")]
            facts += [("key", _text(letter.key)), ("value", _text(letter.value))]
            facts += [(f"header {name}", _text(value)) for name, value in letter.headers]
        return {
            "title": f"{moment(letter.timestamp)} {exception or 'no dead letter'} from {letter.source or '-'}",
            "facts": facts,
            "stacktrace": None if self._hides or note is None else note.stacktrace,
            "replayed": done.has(letter),
            "can_be_replayed": letter.source is not None and targets.refuses(letter.source) is None,
            "partition": letter.partition,
            "offset": letter.offset,
        }


def _latest(log: Log, topic: str, selection: Selection, before: int) -> dict[int, list[Letter]]:
    """Return the last letters of each partition, before an offset if it is not negative; [] if there are none at all.

    Offsets may be without records, many in a row: aborted transactions and compaction leave such.
    """
    found: dict[int, list[Letter]] = {}
    partitions = partitions_of(log, topic, selection)
    starts, ends = log.start_offsets(partitions), log.end_offsets(partitions)
    for each in partitions:
        first = ends[each] if before < 0 else min(before, ends[each])
        letters = deque[Letter](maxlen=_ON_A_PAGE)
        offsets = _ON_A_PAGE
        while not letters and first > starts[each]:
            end, first = first, max(starts[each], first - offsets)
            offsets *= 2
            for batch in batches_from(log, TopicPartition(topic, each.partition), first, end):
                letters.extend(letter for letter in letters_in(batch) if letter.offset < end)
        found[each.partition] = list(letters)
    return found


def _said(sent: int, held: int) -> str:
    said = f"Replayed: {sent:,}."
    if not held:
        return said
    why = "their topic does not exist or refuses them, or no source of the application reads it"
    return f"{said} {held:,} still wait: {why}."


def _text(data: bytes | None) -> str:
    return "null" if data is None else shown(data.decode("utf-8", "backslashreplace"))


def _refused(error: PenstockError) -> Context:
    _log.warning("dead letters cannot be read: %s", error)
    return {"refused": "The topic cannot be read now; the log of the server says why."}
