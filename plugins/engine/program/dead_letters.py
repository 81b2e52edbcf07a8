"""Dead letters: reading and selecting them, and sending each once to the topic that it came from, or to another."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from penstock import (
    Commit,
    ConfigError,
    FencedError,
    Headers,
    Log,
    OutputBatch,
    Record,
    RecordBatch,
    RecordRefusedError,
    TaskCommitter,
    TopicPartition,
    UnknownTopicError,
)
from penstock.plugins.engine.task.locations import read_up_to
from penstock.task.dead_letter import FailureNote, split_headers

from .letter_targets import BY_HEADERS, NoPartitionError, Targets

_STATE_BYTES = 1_900
_VERSION = "replay"
_LOOK_BACK = 20
_STRETCHES = "offsets"
"""Beside the kinds, which are hexadecimal numbers."""


@dataclass(frozen=True)
class Letter:
    """A record of a dead-letter topic, and the note about its failure (None: the record is no dead letter).

    `key`, `value`, `timestamp` and `headers` are the source record's.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    note: FailureNote | None

    @property
    def exception(self) -> str | None:
        """The name of the exception's type, without the message that Kafka Streams writes behind it."""
        return self.note.exception.partition(":")[0] if self.note is not None and self.note.exception else None

    @property
    def source(self) -> str | None:
        """The topic that it was read from; None for a failure in a punctuator."""
        return self.note.topic if self.note is not None else None

    @property
    def kind(self) -> str:
        """A short name for all letters with this exception and source topic."""
        return blake2b(f"{self.exception}\0{self.source}".encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class Selection:
    """Which letters to take: those that match every criterion; None or empty matches all.

    `exceptions` are names of types, with their modules or without. `first` and `last` are offsets, both included.
    `since_ms` compares timestamps, which are the source records'.
    """

    exceptions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    since_ms: int | None = None

    def has(self, letter: Letter) -> bool:
        """Return whether a letter matches."""
        exception = letter.exception or ""
        return (
            (not self.exceptions or exception in self.exceptions or exception.rpartition(".")[2] in self.exceptions)
            and (not self.sources or letter.source in self.sources)
            and (self.first is None or letter.offset >= self.first)
            and (self.last is None or letter.offset <= self.last)
            and (self.since_ms is None or letter.timestamp >= self.since_ms)
        )

    @property
    def end(self) -> int | None:
        """The offset after the last one that can match; None: all may."""
        return None if self.last is None else self.last + 1

    @property
    def by_kind(self) -> bool:
        """Whether it selects some kinds of letters only."""
        return bool(self.exceptions or self.sources)

    @property
    def by_place(self) -> bool:
        """Whether it selects some letters of a kind only, so that a position cannot say which were taken."""
        return self.first is not None or self.last is not None or self.since_ms is not None


def read_letters(log: Log, topic: str, selection: Selection | None = None) -> Iterator[Letter]:
    """Yield the selected letters of a topic, up to where it ends now, one partition after the other."""
    selection = selection or Selection()
    for partition in partitions_of(log, topic, selection):
        for batch in batches_from(log, partition, selection.first or 0, selection.end):
            yield from (letter for letter in letters_in(batch) if selection.has(letter))


def partitions_of(log: Log, topic: str, selection: Selection) -> list[TopicPartition]:
    """Return the partitions that can have selected letters.

    Raises UnknownTopicError, or ConfigError for a partition that does not exist.
    """
    try:
        info = log.topic(topic)
    except UnknownTopicError as error:
        raise UnknownTopicError(f"there is no dead-letter topic {topic!r}") from error
    if selection.partition is None:
        return [TopicPartition(topic, number) for number in range(info.partitions)]
    if selection.partition >= info.partitions:
        raise ConfigError(
            f"topic {topic!r} has no partition {selection.partition}: it has {info.partitions}, numbered from 0"
        )
    return [TopicPartition(topic, selection.partition)]


def batches_from(log: Log, partition: TopicPartition, start: int, end: int | None = None) -> Iterator[RecordBatch]:
    """Return the batches of a partition from offset `start` to `end` (None: to its present end)."""
    last = log.end_offsets([partition])[partition]
    first = max(start, log.start_offsets([partition])[partition])
    return read_up_to(log, partition, first, last if end is None else min(end, last))


def letters_in(batch: RecordBatch) -> Iterator[Letter]:
    """Yield the letters of a batch."""
    for index, offset in enumerate(batch.offsets):
        headers, note = split_headers(batch.headers[index] if batch.headers is not None else ())
        yield Letter(
            batch.topic,
            batch.partition,
            offset,
            batch.keys[index],
            batch.values[index],
            batch.timestamps[index],
            headers,
            note,
        )


@dataclass
class Replayed:
    """The replayed part of one partition.

    That is everything below offset `base`, of some kinds of letters everything below a higher offset, and what was
    replayed by its place: `stretches` of offsets, first and last.
    """

    base: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    stretches: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, commit: Commit | None, partition: TopicPartition) -> Replayed:
        """Return the state of the last replay's commit; an empty one if the topic was deleted since and made again.

        Raises ConfigError for the commit of an application.
        """
        if commit is None:
            return cls()
        if commit.version != _VERSION:
            raise ConfigError(
                f"what was replayed of {partition.topic!r} is kept under the id {group_of(partition.topic)!r}. There "
                "is an application of this id, whose commits a replay would replace: give the application another id "
                "(--application-id), and `penstock reset` the old one"
            )
        if partition not in commit.positions:
            return cls()
        kinds = json.loads(commit.engine_state or b"{}")
        stretches = [(first, last) for first, last in kinds.pop(_STRETCHES, [])]
        return cls(commit.positions[partition], kinds, stretches)

    def has(self, letter: Letter) -> bool:
        """Return whether a letter was replayed."""
        at = letter.offset
        return at < max(self.base, self.kinds.get(letter.kind, 0)) or any(
            first <= at <= last for first, last in self.stretches
        )

    def note_all(self, position: int) -> None:
        """Mark everything below `position` as replayed."""
        self.base = max(self.base, position)
        self.kinds = {kind: at for kind, at in self.kinds.items() if at > self.base}
        self.stretches = [each for each in self.stretches if each[1] >= self.base]

    def note_kinds(self, kinds: set[str], position: int) -> None:
        """Mark the letters of these kinds below `position` as replayed."""
        self.kinds |= {kind: max(position, self.kinds.get(kind, 0)) for kind in kinds if position > self.base}

    def note_stretch(self, first: int, last: int) -> None:
        """Mark the letters from offset `first` to `last` as replayed."""
        apart = []
        for each in self.stretches:
            if each[1] + 1 < first or each[0] > last + 1:
                apart.append(each)
            else:
                first, last = min(first, each[0]), max(last, each[1])
        self.stretches = sorted([*apart, (first, last)])

    def to_bytes(self) -> bytes:
        """Return all but `base` as bytes; that is a position of the log's. Raises ConfigError when it is too much."""
        saved = {**self.kinds, _STRETCHES: self.stretches} if self.stretches else self.kinds
        data = json.dumps(saved, separators=(",", ":")).encode()
        if len(data) > _STATE_BYTES:
            raise ConfigError(
                f"letters of {len(self.kinds)} kinds (exception and source topic) and {len(self.stretches)} stretches "
                "of offsets were replayed apart from the others, and no more can be remembered: send letters that "
                "cannot go back, or that their topic refuses, to another topic (--to TOPIC); replay all others at once"
            )
        return data


@dataclass(frozen=True)
class Sent:
    """Letters of one partition that were sent to one topic, from offset `first` to `last`."""

    partition: int
    to: str
    records: int
    first: int
    last: int


@dataclass(frozen=True)
class Replay:
    """The counts of a replay.

    `left_out`: letters without a source record, and records that are no letters. `held`: number of letters that cannot
    go back yet, by the topic that they were read from, with the reason.
    """

    sent: tuple[Sent, ...]
    left_out: int
    held: Mapping[tuple[str, str], int]


def group_of(topic: str) -> str:
    """Return the application id under which the log stores the replay state of a dead-letter topic."""
    return f"{topic}-replay"


def replayed(log: Log, topic: str) -> Mapping[int, Replayed]:
    """Return the replayed part of each partition, without disturbing a running replay."""
    return {
        partition.partition: Replayed.of(
            log.last_commit(group_of(topic), f"0_{partition.partition}", [partition]), partition
        )
        for partition in partitions_of(log, topic, Selection())
    }


def replay(
    log: Log,
    topic: str,
    selection: Selection,
    *,
    to: str | None = None,
    limit: int | None = None,
    again: bool | None = None,
    dry_run: bool = False,
    targets: Targets = BY_HEADERS,
) -> Replay:
    """Send selected letters, as their source records were, to `to` or back to where each was read.

    Back means into the same partition; `targets` choose where it is gone, where the key moved, and in `to`. `again`:
    also letters that were replayed before; None: if the selection goes by place or time. Letters that cannot be sent
    wait, and hold up no others. Sent and remembered is one commit, so a killed replay continues. At most `limit` are
    sent. Raises UnknownTopicError without a topic `to`, ConfigError for another use of the id, FencedError for a rival.
    """
    if to is not None and to not in log.topics():
        raise UnknownTopicError(f"there is no topic {to!r} to replay to")
    total: list[Sent] = []
    held: Counter[tuple[str, str]] = Counter()
    left_out, also_replayed = 0, selection.by_place if again is None else again
    for partition in partitions_of(log, topic, selection):
        left = None if limit is None else limit - sum(each.records for each in total)
        if left is not None and left <= 0:
            break
        one = _PartitionReplay(log, partition, selection, to, left, also_replayed, targets)
        try:
            if dry_run:
                one.run(replayed(log, topic)[partition.partition])
            else:
                one.run_and_commit()
        except FencedError as error:
            sent = sum(each.records for each in (*total, *one.now.sent.values()))
            what = f"another replay of {topic!r} has taken over: this one has ended, having sent {sent} records"
            raise FencedError(f"{what}, which count. Replay again when the other one has ended") from error
        total += one.now.sent.values()
        left_out += one.now.left_out
        held += one.now.held
    return Replay(tuple(total), left_out, held)


@dataclass
class _ReplayProgress:
    """The part of a partition that was read. `memory` is the data of the next commit; `left`: letters up to the limit.

    `waiting` has the kinds of letters that are held, and `alone` those of them whose letters wait one by one, such as
    those that the log refused: other letters of such a kind are sent. `stretch` has the offsets of the last letters in
    a row that do not wait. `record` is the source record that was sent last, as `_source_record` returns it. With a
    `record_kind`, an earlier replay has sent it for letters of this kind, and others wait.
    """

    memory: Replayed
    left: int | None
    sent: dict[str, Sent] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    alone: set[str] = field(default_factory=set)
    first_held: int | None = None
    stretch: tuple[int, int] | None = None
    record: tuple[object, ...] | None = None
    record_kind: str | None = None
    left_out: int = 0
    held: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(eq=False)
class _PartitionReplay:
    """The replay of one partition."""

    log: Log
    partition: TopicPartition
    selection: Selection
    to: str | None
    limit: int | None
    again: bool
    targets: Targets

    def __post_init__(self) -> None:
        self._counts = {name: info.partitions for name, info in self.log.topics().items()}
        self._refusals: list[RecordRefusedError] = []
        self.now = _ReplayProgress(Replayed(), self.limit)

    def run_and_commit(self) -> None:
        """Send, in commits of about a fetch each."""
        partition = self.partition
        group, task = group_of(partition.topic), f"0_{partition.partition}"
        # A look first: opening would take the fence of an application of this id. Weeks may pass until the next replay.
        Replayed.of(self.log.last_commit(group, task, [partition]), partition)
        with closing(self.log.open_lasting_committer(group, task, [partition])) as committer:
            self.now.memory = Replayed.of(committer.committed, partition)
            for batch in self._batches():
                self._commit(committer, batch)

    def run(self, memory: Replayed) -> None:
        """Read, but send nothing."""
        self.now.memory = memory
        for batch in self._batches():
            self._outputs(batch)

    def _batches(self) -> Iterator[RecordBatch]:
        start, base = self.selection.first or 0, self.now.memory.base  # only a replay of everything moves it
        first = start if self.again else max(start, base)
        if not self.again:
            self._recall(first)
        for batch in batches_from(self.log, self.partition, first, self.selection.end):
            yield batch
            if self.now.left == 0:
                return

    def _recall(self, first: int) -> None:
        """Recall the source record before offset `first`: a limit, or a kill, may have cut off more of its letters."""
        # Between two letters may be the offsets of a few transactions.
        for batch in batches_from(self.log, self.partition, max(0, first - _LOOK_BACK), first):
            for letter in letters_in(batch):
                self.now.record = _source_record(letter) if self.now.memory.has(letter) else None

    def _commit(self, committer: TaskCommitter, batch: RecordBatch) -> None:
        """Send the letters of a batch in one commit, without refused ones."""
        before = self.now
        while True:
            self.now = deepcopy(before)
            outputs = self._outputs(batch)
            memory = self.now.memory
            try:
                committer.commit(Commit({self.partition: memory.base}, _VERSION, memory.to_bytes()), outputs)
                return
            except FencedError:
                self.now = before
                raise
            except RecordRefusedError as refusal:
                refused = (output for output in outputs if output.topic == refusal.topic)
                if not any(any(map(refusal.refuses, each.keys, each.values, each.timestamps)) for each in refused):
                    raise
                self._refusals.append(refusal)

    def _outputs(self, batch: RecordBatch) -> list[OutputBatch]:
        """Return the outputs of a batch, and mark its letters in `now` as replayed once the outputs are sent."""
        now = self.now
        outputs: dict[str, OutputBatch] = {}
        position = batch.next_offset
        for letter in letters_in(batch):
            if now.left == 0 and not self._was_sent_last(letter):
                position = letter.offset
                break
            if self.selection.has(letter) and self._take(letter, outputs):
                now.stretch = (now.stretch[0] if now.stretch else letter.offset, letter.offset)
            else:
                self._note_stretch()
                now.stretch = None
        self._note(position)
        return list(outputs.values())

    def _note(self, position: int) -> None:
        """Mark the selected letters below `position` as replayed, without held ones."""
        now, memory = self.now, self.now.memory
        self._note_stretch()
        if self.selection.by_place:
            return
        if not self.selection.by_kind:
            memory.note_all(position if now.first_held is None else now.first_held)
        memory.note_kinds(now.done - now.waiting, position)

    def _note_stretch(self) -> None:
        # A position says which letters of a kind were replayed, unless some of them wait alone.
        if self.now.stretch is not None and (self.selection.by_place or self.now.alone):
            self.now.memory.note_stretch(*self.now.stretch)

    def _take(self, letter: Letter, outputs: dict[str, OutputBatch]) -> bool:
        """Add a letter to the outputs if it is to be sent; return whether it does not have to wait any longer."""
        now = self.now
        if letter.source is None or letter.note is None:
            now.left_out += 1
            return True
        if now.memory.has(letter) and not self.again:
            now.done.add(letter.kind)
            now.record, now.record_kind = _source_record(letter), letter.kind
            return True
        to = self.to or self.targets.topic_now(letter.source)
        refusal = self._refusal(letter, to)
        why, chosen = str(refusal) if refusal else self._why_not(to), None
        is_alone = refusal is not None
        if why is None:
            try:
                chosen = self._chosen(letter, to)
            except NoPartitionError as error:
                why, is_alone = str(error), True
        if why is not None:
            if is_alone and letter.kind not in now.waiting and not self.selection.by_place:
                now.memory.note_kinds({letter.kind}, letter.offset)
            if is_alone:
                now.alone.add(letter.kind)
            now.waiting.add(letter.kind)
            now.held[to, why] += 1
            if now.first_held is None:
                now.first_held = letter.offset
            return False
        now.done.add(letter.kind)
        if self._was_sent_last(letter):
            if to in now.sent:  # else an earlier replay has sent it
                now.sent[to] = replace(now.sent[to], last=letter.offset)
            return True
        now.record, now.record_kind = _source_record(letter), None
        output = outputs.setdefault(to, OutputBatch(to, [], [], [], [], []))
        output.keys.append(letter.key)
        output.values.append(letter.value)
        output.timestamps.append(letter.timestamp)
        assert output.headers is not None and output.partitions is not None
        output.headers.append(letter.headers)
        output.partitions.append(chosen)
        sent = now.sent.get(to, Sent(letter.partition, to, 0, letter.offset, letter.offset))
        now.sent[to] = replace(sent, records=sent.records + 1, last=letter.offset)
        if now.left is not None:
            now.left -= 1
        return True

    def _chosen(self, letter: Letter, to: str) -> Sequence[int] | None:
        """Return the partitions of a letter in topic `to`; None: any may have it. Raises NoPartitionError."""
        number = letter.note.partition if letter.note is not None else None
        stays = self.to is None and letter.note is not None and not self.targets.is_moved(letter.note)
        if stays and number is not None and number < self._counts[to]:
            return (number,)
        record = Record(letter.key, letter.value, letter.timestamp, letter.headers)
        return self.targets.choose(to, record, self._counts[to])

    def _was_sent_last(self, letter: Letter) -> bool:
        """Return whether a letter has the same source record as the letter sent last: several outputs of it failed."""
        now = self.now
        return (
            now.record is not None and now.record == _source_record(letter) and now.record_kind in (None, letter.kind)
        )

    def _why_not(self, topic: str) -> str | None:
        if self.to is not None:
            return None
        return self.targets.refuses(topic) or (None if topic in self._counts else "it does not exist")

    def _refusal(self, letter: Letter, topic: str) -> RecordRefusedError | None:
        content = letter.key, letter.value, letter.timestamp
        return next((each for each in self._refusals if each.topic == topic and each.refuses(*content)), None)


def _source_record(letter: Letter) -> tuple[object, ...] | None:
    """Return the place and the content of a letter's source record; None where headers do not say the place."""
    note = letter.note
    if note is None or note.offset is None:
        return None
    return note.topic, note.partition, note.offset, letter.key, letter.value, letter.timestamp


def count_letters(log: Log, topic: str) -> dict[tuple[str | None, str | None], tuple[int, int]]:
    """Return the number of letters, and of letters not replayed yet, by source topic and exception."""
    before = replayed(log, topic)
    kinds, waiting = Counter[tuple[str | None, str | None]](), Counter[tuple[str | None, str | None]]()
    for letter in read_letters(log, topic):
        kind = letter.source, letter.exception
        kinds[kind] += 1
        waiting[kind] += letter.source is not None and not before[letter.partition].has(letter)
    return {kind: (number, waiting[kind]) for kind, number in kinds.most_common()}
