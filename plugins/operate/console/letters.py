"""Letters: dead letters as the pages show them, and their replay."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import OrderedDict, deque
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any

from penstock import Application, ConfigError, FencedError, Log, PenstockError, TopicPartition
from penstock.plugins.engine.program.dead_letters import (
    Letter,
    Replayed,
    Selection,
    batches_from,
    letters_in,
    partitions_of,
    read_letters,
    replay,
    replayed,
)
from penstock.plugins.engine.program.letter_targets import ApplicationTargets, Targets
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.state.queries.http.guard import Refused
from penstock.settings.dead_letters import dead_letter_topics, handlers_of
from penstock.support.printable import on_one_line

from . import watch
from .store_views import shown
from .views import Context, Given, link, moment, number

MOST_REPLAYED = 1_000
"""How many letters one request replays at most."""
_ON_A_PAGE = 50
"""How many offsets of each partition are read for a page."""
_LONGEST_FAILURE = 20_000
"""How many characters of a message and a traceback are shown; penstock's own letters have fewer."""
_MOST_REMEMBERED = 1_000
"""How many forms that were sent are remembered."""

_log = logging.getLogger("penstock.console")


@dataclass(frozen=True)
class Done:
    """The result of a replay: how many letters were sent, and how many wait.

    They wait because their topic is gone, refuses them, or is none that the application reads, or because it is not
    known to which of its partitions they go. `earlier`: the one that was named was not sent, since it, or another
    letter of its record, had been replayed already.
    """

    sent: int
    held: int
    earlier: bool = False

    @classmethod
    def of_query(cls, given: Given) -> Done | None:
        """Return the result that the address of a page has; None for a page that follows no replay."""
        if not given.get("sent"):
            return None
        return cls(number(given, "sent"), number(given, "held"), "earlier" in given)

    def query(self) -> dict[str, object]:
        """Return this for the address of a page."""
        return {"sent": self.sent, "held": self.held, **({"earlier": "yes"} if self.earlier else {})}

    def __str__(self) -> str:
        if self.earlier:
            return "Not sent: the letter, or another one of its record, had been replayed already."
        said = f"Replayed: {self.sent:,}."
        if not self.held:
            return said
        why = (
            "their topic does not exist or refuses them, no source of the application reads it, or it is not known to "
            "which of its partitions they go"
        )
        return f"{said} {self.held:,} still wait: {why}."


class Letters:
    """Reads and replays the dead letters of an application. `hides`: records and messages are not shown."""

    def __init__(self, application: Application, *, hides: bool) -> None:
        settings = application.with_settings(task_timeout=watch.LOG_TIMEOUT).settings
        self._application = application
        self._settings = settings
        self._hides = hides
        self._topics = dead_letter_topics(handlers_of(settings, application.program).values())
        self._replaying = threading.Lock()
        self._forms: OrderedDict[tuple[str | None, ...], Done] = OrderedDict()
        """The forms that were sent, by what each named, with the result."""

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
            "done": Done.of_query(given),
            "form": secrets.token_hex(8),
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
        except ConfigError as error:  # such as a partition that is not there; it has no secrets
            return {**context, "refused": f"{error}.", "status": 400}
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

    def replay(self, given: Given) -> Done:
        """Send one letter, or all that were not replayed, back to where they were read.

        A form that comes again once it has sent something, as after a double click, sends nothing more: the result is
        that of the first time. One letter that was replayed since its page was made is not sent, unless the page said
        so (`again`).

        Raises Refused for a request that names no letter, or one that is not there any more, and PenstockError.
        """
        topic, partition, offset = given.get("topic", ""), number(given, "partition", -1), number(given, "offset", -1)
        self._check(topic)
        names_one = "partition" in given or "offset" in given
        if names_one and (partition < 0 or offset < 0):
            raise Refused(400, "bad_request", "Expected the partition and the offset of a letter.")
        form = tuple(given.get(name) for name in ("form", "topic", "partition", "offset"))
        # One after the other: two that send the same letter would fence each other's committer.
        with self._replaying, closing(open_log(self._settings)) as log:
            if (before := self._forms.get(form)) is not None:
                return before
            done = self._replay_one(log, topic, partition, offset, given) if names_one else self._replay_all(log, topic)
            if form[0] and done.sent:
                self._forms[form] = done
                if len(self._forms) > _MOST_REMEMBERED:
                    self._forms.popitem(last=False)
        return done

    def _replay_one(self, log: Log, topic: str, partition: int, offset: int, given: Given) -> Done:
        selection, again = Selection(partition=partition, first=offset, last=offset), given.get("again") == "yes"
        letter = next(read_letters(log, topic, selection), None)
        if letter is None or given.get("letter") not in (None, _mark(letter)):
            raise Refused(
                409, "letter_gone", "This letter is not there any more: it expired, or its topic was made again. Load "
                "the page of dead letters again, to see those that are there."
            )  # fmt: skip
        if not again and replayed(log, topic)[partition].has(letter):
            return Done(0, 0, earlier=True)
        done = self._sent(log, topic, selection, again=again)
        is_earlier = letter.source is not None and not (done.sent or done.held)
        return Done(done.sent, done.held, earlier=is_earlier)

    def _replay_all(self, log: Log, topic: str) -> Done:
        return self._sent(log, topic, Selection(), again=False)

    def _sent(self, log: Log, topic: str, selection: Selection, *, again: bool) -> Done:
        targets = ApplicationTargets(self._application, log)
        try:
            done = replay(log, topic, selection, limit=MOST_REPLAYED, again=again, targets=targets)
        except FencedError as error:
            _log.warning("%s", error)
            raise Refused(
                409, "other_replay", "Another replay of this topic began meanwhile, and has taken over: this one has "
                "ended, and what it had sent counts. Load the page of dead letters again, to see what is left."
            ) from error  # fmt: skip
        sent = sum(each.records for each in done.sent)
        _log.info("the console replayed %d dead letters of %s", sent, topic)
        for (name, why), count in done.held.items():
            _log.warning("%d dead letters of %s cannot go back to topic %r: %s", count, topic, name, why)
        return Done(sent, sum(done.held.values()))

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
            facts += [("read from", on_one_line(read)), ("exception", on_one_line(exception or "-"))]
        if not self._hides:
            facts += [("message", shown((note.message if note is not None else None) or "-", _LONGEST_FAILURE))]
            facts += [("key", _text(letter.key)), ("value", _text(letter.value))]
            facts += [(f"header {on_one_line(shown(name))}", _text(value)) for name, value in letter.headers]
        title = f"{moment(letter.timestamp)} {exception or 'no dead letter'} from {letter.source or '-'}"
        return {
            "title": on_one_line(title),
            "facts": facts,
            "stacktrace": None if self._hides or note is None else shown(note.stacktrace, _LONGEST_FAILURE),
            "replayed": done.has(letter),
            "can_be_replayed": letter.source is not None and targets.refuses(letter.source) is None,
            "partition": letter.partition,
            "offset": letter.offset,
            "mark": _mark(letter),
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


def _mark(letter: Letter) -> str:
    """Return a name for a letter, by its time and its source record's place, which each page shows.

    Another letter at its offset, as in a topic that was made again, has another name.
    """
    note = letter.note
    read_from = () if note is None else (note.topic, note.partition, note.offset)
    return blake2b(repr((letter.timestamp, *read_from)).encode(), digest_size=8).hexdigest()


def _text(data: bytes | None) -> str:
    return "null" if data is None else shown(data.decode("utf-8", "backslashreplace"))


def _refused(error: PenstockError) -> Context:
    _log.warning("dead letters cannot be read: %s", error)
    return {"refused": "The topic cannot be read now; the log of the server says why."}
