"""Replaying dead letters: each is sent once to the topic that it came from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from penstock import (
    Commit,
    ConfigError,
    Log,
    OutputBatch,
    TopicPartition,
    UnknownTopicError,
)

from .dead_letters import Letter, Selection, batches_from, letters_in, partitions_of, read_letters
from .replay_targets import BY_HEADERS, Targets

_STATE_BYTES = 1_900
_VERSION = "replay"
_STRETCHES = "offsets"
"""Beside the kinds, which are hexadecimal numbers."""


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
        """Return what a replay's last commit remembers; nothing of a topic that was deleted since, and made again.

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
        """Note that everything below `position` was replayed."""
        self.base = max(self.base, position)
        self.kinds = {kind: at for kind, at in self.kinds.items() if at > self.base}
        self.stretches = [each for each in self.stretches if each[1] >= self.base]

    def note_kinds(self, kinds: set[str], position: int) -> None:
        """Note that the letters of these kinds below `position` were replayed."""
        self.kinds |= {kind: max(position, self.kinds.get(kind, 0)) for kind in kinds if position > self.base}

    def note_stretch(self, first: int, last: int) -> None:
        """Note that the letters from offset `first` to `last` were replayed."""
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
                "of offsets were replayed apart from the others, and no more can be remembered: replay all kinds at "
                "once, and letters that cannot go back to another topic (--to TOPIC)"
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

    `left_out`: letters without a source record, and records that are no letters. `held`: how many letters still wait
    because they cannot go back, by the topic that they were read from, and why.
    """

    sent: tuple[Sent, ...]
    left_out: int
    held: Mapping[tuple[str, str], int]


def group_of(topic: str) -> str:
    """Return the application id under which the log keeps what was replayed of a dead-letter topic."""
    return f"{topic}-replay"


def replayed(log: Log, topic: str) -> Mapping[int, Replayed]:
    """Return the replayed part of each partition, without disturbing a running replay."""
    return {
        each.partition: Replayed.of(log.last_commit(group_of(topic), f"0_{each.partition}", [each]), each)
        for each in partitions_of(log, topic, Selection())
    }


def replay(
    log: Log,
    topic: str,
    selection: Selection,
    *,
    to: str | None = None,
    limit: int | None = None,
    again: bool = False,
    dry_run: bool = False,
    targets: Targets = BY_HEADERS,
) -> Replay:
    """Send selected letters, as their source records were, to `to` or back to where each was read.

    Back means into the partition that it was read from. `targets` choose the partition where that is not there, where
    the key has moved, and in `to`. Letters that were replayed before are left out, except with `again` or where the
    selection goes by place or time. Letters whose topic is not there, or is refused by `targets`, wait, and hold up no
    others. What is sent and what is remembered are one commit of the log: a replay that is killed is taken up where it
    was. At most `limit` are sent. Raises UnknownTopicError when there is no topic `to`, and ConfigError when an
    application has the id under which the log keeps what was replayed.
    """
    if to is not None and to not in log.topics():
        raise UnknownTopicError(f"there is no topic {to!r} to replay to")
    total: list[Sent] = []
    held: Counter[tuple[str, str]] = Counter()
    left_out = 0
    for partition in partitions_of(log, topic, selection):
        if limit is not None and sum(each.records for each in total) >= limit:
            break
        left = None if limit is None else limit - sum(each.records for each in total)
        one = _PartitionReplay(log, partition, selection, to, left, again or selection.by_place, targets)
        if dry_run:
            one.run(replayed(log, topic)[partition.partition])
        else:
            one.run_and_commit()
        total += one.sent()
        left_out += one.left_out
        held += one.held
    return Replay(tuple(total), left_out, held)


class _PartitionReplay:
    """The replay of one partition."""

    def __init__(
        self,
        log: Log,
        partition: TopicPartition,
        selection: Selection,
        to: str | None,
        limit: int | None,
        again: bool,
        targets: Targets,
    ) -> None:
        self._log = log
        self._partition = partition
        self._selection = selection
        self._to = to
        self._left = limit
        self._again = again
        self._targets = targets
        self._counts = {name: info.partitions for name, info in log.topics().items()}
        self._offsets: dict[str, list[int]] = {}
        self._done: set[str] = set()
        self._waiting: set[str] = set()
        self._first_held: int | None = None
        self._stretch: tuple[int, int] | None = None
        self.left_out = 0
        self.held = Counter[tuple[str, str]]()

    def run_and_commit(self) -> None:
        """Send, in commits of about a fetch each."""
        partition = self._partition
        group, task = group_of(partition.topic), f"0_{partition.partition}"
        # A look first: opening would take the fence of an application of this id.
        Replayed.of(self._log.last_commit(group, task, [partition]), partition)
        # Weeks may pass until the next replay.
        with closing(self._log.open_lasting_committer(group, task, [partition])) as committer:
            memory = Replayed.of(committer.committed, partition)
            for outputs in self._outputs(memory):
                committer.commit(Commit({partition: memory.base}, _VERSION, memory.to_bytes()), outputs)

    def run(self, memory: Replayed) -> None:
        """Read, but send nothing."""
        for _ in self._outputs(memory):
            pass

    def sent(self) -> list[Sent]:
        """Return the number of sent records, by topic."""
        number = self._partition.partition
        return [Sent(number, to, len(each), each[0], each[-1]) for to, each in self._offsets.items()]

    def _outputs(self, memory: Replayed) -> Iterator[list[OutputBatch]]:
        """Yield outputs, and update `memory` with what is replayed once they are sent."""
        start = self._selection.first or 0
        # Only a replay of everything moves `base`.
        first = start if self._again else max(start, memory.base)
        for batch in batches_from(self._log, self._partition, first, self._selection.end):
            outputs: dict[str, OutputBatch] = {}
            position = batch.next_offset
            for letter in letters_in(batch):
                if self._left == 0:
                    position = letter.offset
                    break
                if self._selection.has(letter) and self._take(letter, memory, outputs):
                    self._stretch = (self._stretch[0] if self._stretch else letter.offset, letter.offset)
                else:
                    self._note_stretch(memory)
                    self._stretch = None
            self._note(memory, position)
            yield list(outputs.values())
            if self._left == 0:
                return

    def _note(self, memory: Replayed, position: int) -> None:
        """Note that the selected letters below `position` were replayed, without those that are held."""
        if self._selection.by_place:
            self._note_stretch(memory)
        elif self._selection.by_kind:
            memory.note_kinds(self._done - self._waiting, position)
        elif self._first_held is None:
            memory.note_all(position)
        else:
            memory.note_all(self._first_held)
            memory.note_kinds(self._done - self._waiting, position)

    def _note_stretch(self, memory: Replayed) -> None:
        if self._stretch is not None and self._selection.by_place:
            memory.note_stretch(*self._stretch)

    def _take(self, letter: Letter, memory: Replayed, outputs: dict[str, OutputBatch]) -> bool:
        """Add a letter to the outputs if it is to be sent; return whether it does not have to wait any longer."""
        if letter.source is None or letter.note is None:
            self.left_out += 1
            return True
        if memory.has(letter) and not self._again:
            self._done.add(letter.kind)
            return True
        to = self._to or letter.source
        if self._to is None and (why := self._why_not(to)) is not None:
            self._waiting.add(letter.kind)
            self.held[to, why] += 1
            if self._first_held is None:
                self._first_held = letter.offset
            return False
        self._done.add(letter.kind)
        number = letter.note.partition
        chosen: Sequence[int] | None = None
        stays = self._to is None and not self._targets.is_moved(letter.note)
        if stays and number is not None and number < self._counts[to]:
            chosen = (number,)
        elif letter.key is not None:
            chosen = self._targets.choose(to, letter.key, self._counts[to])
        output = outputs.setdefault(to, OutputBatch(to, [], [], [], [], []))
        output.keys.append(letter.key)
        output.values.append(letter.value)
        output.timestamps.append(letter.timestamp)
        assert output.headers is not None and output.partitions is not None
        output.headers.append(letter.headers)
        output.partitions.append(chosen)
        self._offsets.setdefault(to, []).append(letter.offset)
        if self._left is not None:
            self._left -= 1
        return True

    def _why_not(self, topic: str) -> str | None:
        return self._targets.refuses(topic) or (None if topic in self._counts else "it does not exist")


def count_letters(log: Log, topic: str) -> dict[tuple[str | None, str | None], tuple[int, int]]:
    """Return the number of letters, and of those not replayed yet, by source topic and exception."""
    before = replayed(log, topic)
    there: Counter[tuple[str | None, str | None]] = Counter()
    waiting: Counter[tuple[str | None, str | None]] = Counter()
    for letter in read_letters(log, topic):
        kind = letter.source, letter.exception
        there[kind] += 1
        waiting[kind] += letter.source is not None and not before[letter.partition].has(letter)
    return {kind: (number, waiting[kind]) for kind, number in there.most_common()}
