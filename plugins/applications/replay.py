"""Replaying dead letters: each is sent once to the topic that it came from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from penstock import (
    Application,
    Commit,
    ConfigError,
    Log,
    OutputBatch,
    SinkNode,
    SourceNode,
    TopicPartition,
    UnknownTopicError,
    default_partitioner,
)
from penstock.plugins.upgrade.saved_program import read_note_of_any_version
from penstock.plugins.upgrade.windowed_keys import WHOLE_KEYS, whole_keys, with_whole_keys
from penstock.program.nodes import decorate
from penstock.program.partitioning import partitions_of_key
from penstock.program.serdes import serdes_of_topic

from .dead_letters import Letter, Selection, batches_from, letters_in, partitions_of, read_letters
from .stored_id import stored_application

_STATE_BYTES = 1_900


@dataclass
class Replayed:
    """The replayed part of one partition.

    That is everything below offset `base`, and of some kinds of letters everything below a higher offset.
    """

    base: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, commit: Commit | None, partition: TopicPartition) -> Replayed:
        """Return what a replay's last commit remembers."""
        if commit is None:
            return cls()
        return cls(commit.positions.get(partition, 0), json.loads(commit.engine_state or b"{}"))

    def has(self, letter: Letter) -> bool:
        """Return whether a letter was replayed."""
        return letter.offset < max(self.base, self.kinds.get(letter.kind, 0))

    def note(self, selection: Selection, seen: set[str], position: int) -> None:
        """Note that the selected letters below `position` were replayed; `seen` are their kinds."""
        if selection.by_place:
            return
        if not selection.by_kind:
            self.base = max(self.base, position)
        else:
            self.kinds |= {kind: max(position, self.kinds.get(kind, 0)) for kind in seen}
        self.kinds = {kind: at for kind, at in self.kinds.items() if at > self.base}

    def to_bytes(self) -> bytes:
        """Return the kinds as bytes; `base` is a position of the log's. Raises ConfigError when there are too many."""
        data = json.dumps(self.kinds, separators=(",", ":")).encode()
        if len(data) > _STATE_BYTES:
            raise ConfigError(
                f"letters of {len(self.kinds)} kinds (exception and source topic) were replayed one kind after the "
                "other, and no more can be "
                "remembered: replay all kinds at once, or by --offsets, which remembers nothing"
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
    """The counts of a replay. `left_out`: letters without a source record, and records that are no letters."""

    sent: tuple[Sent, ...]
    left_out: int


def group_of(topic: str) -> str:
    """Return the application id under which the log keeps what was replayed of a dead-letter topic."""
    return f"{topic}-replay"


Choose = Callable[[str, bytes, int], Sequence[int]]
"""(topic, serialized key, number of partitions) -> the partitions to which records with this key go."""


def by_hash(topic: str, key: bytes, count: int) -> Sequence[int]:
    """Choose the partition by the hash of the key's bytes."""
    return (default_partitioner(key, count),)


def by_sinks(application: Application, log: Log) -> Choose:
    """Return the function that chooses as the application's sinks do: a windowed key without its window, for instance.

    Where only a source names the topic, its key serde says whether keys are windowed. Others are chosen `by_hash`.
    """
    application = stored_application(application, log)
    kept = whole_keys(application, read_note_of_any_version(application.id, log), log)
    application = with_whole_keys(application, {WHOLE_KEYS: kept})
    program, settings = application.program, application.settings
    nodes: dict[str, SinkNode | SourceNode] = {}
    for node in sorted(program.nodes.values(), key=lambda each: isinstance(each, SinkNode)):
        if isinstance(node, SourceNode):
            nodes |= {decorate(application.id, each, program.internal_topics): node for each in node.topics}
        elif isinstance(node, SinkNode) and isinstance(node.topic, str):
            nodes[decorate(application.id, node.topic, program.internal_topics)] = node

    def choose(topic: str, key: bytes, count: int) -> Sequence[int]:
        if (node := nodes.get(topic)) is None:
            return by_hash(topic, key, count)
        serde, _ = serdes_of_topic(node.key_serde, None, settings, f"topic {topic!r}", topic)
        if isinstance(node, SinkNode) and (node.partitioner or node.partition_by):
            try:
                if chosen := partitions_of_key(node, serde, topic, serde.deserialize(key), count):
                    return chosen
                raise ValueError("its partitioner drops records with this key")
            except Exception as error:  # a user's function, and a key that may be why the record failed
                raise ConfigError(
                    f"sink {node.name!r} cannot choose a partition of {topic!r} for key {key!r}: {error!r}: leave "
                    "--app away to send it by the hash of its key"
                ) from error
        return by_hash(topic, key[: len(key) - serde.window_bytes], count)

    return choose


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
    choose: Choose = by_hash,
) -> Replay:
    """Send selected letters, as their source records were, to `to` or back to where each was read.

    Back means into the partition that it was read from. `choose` says the partition where that is not there, and in
    `to`. Letters that were replayed before are left out, except with
    `again` or where the selection goes by place or time, which is not remembered. What is sent and what is remembered
    are one commit of the log: a replay that is killed is taken up where it was. At most `limit` are sent. Raises
    UnknownTopicError when a topic to send to is not there.
    """
    total: list[Sent] = []
    left_out = 0
    for partition in partitions_of(log, topic, selection):
        if limit is not None and sum(each.records for each in total) >= limit:
            break
        left = None if limit is None else limit - sum(each.records for each in total)
        one = _PartitionReplay(log, partition, selection, to, left, again or selection.by_place, choose)
        if dry_run:
            one.run(replayed(log, topic)[partition.partition])
        else:
            one.run_and_commit()
        total += one.sent()
        left_out += one.left_out
    return Replay(tuple(total), left_out)


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
        choose: Choose,
    ) -> None:
        self._log = log
        self._partition = partition
        self._selection = selection
        self._to = to
        self._left = limit
        self._again = again
        self._choose = choose
        self._counts = {name: info.partitions for name, info in log.topics().items()}
        self._offsets: dict[str, list[int]] = {}
        self._seen: set[str] = set()
        self.left_out = 0

    def run_and_commit(self) -> None:
        """Send, in commits of about a fetch each."""
        partition = self._partition
        group, task = group_of(partition.topic), f"0_{partition.partition}"
        # Weeks may pass until the next replay.
        with closing(self._log.open_lasting_committer(group, task, [partition])) as committer:
            memory = Replayed.of(committer.committed, partition)
            for outputs in self._outputs(memory):
                committer.commit(Commit({partition: memory.base}, "replay", memory.to_bytes()), outputs)

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
        for batch in batches_from(self._log, self._partition, start if self._again else max(start, memory.base)):
            outputs: dict[str, OutputBatch] = {}
            position = batch.next_offset
            for letter in letters_in(batch):
                if self._left == 0:
                    position = letter.offset
                    break
                if self._selection.has(letter):
                    self._take(letter, memory, outputs)
            memory.note(self._selection, self._seen, position)
            yield list(outputs.values())
            if self._left == 0:
                return

    def _take(self, letter: Letter, memory: Replayed, outputs: dict[str, OutputBatch]) -> None:
        if letter.source is None or letter.note is None:
            self.left_out += 1
            return
        self._seen.add(letter.kind)
        if memory.has(letter) and not self._again:
            return
        to = self._to or letter.source
        if to not in self._counts:
            raise UnknownTopicError(
                f"topic {letter.topic!r} partition {letter.partition} offset {letter.offset} cannot be replayed: there "
                f"is no topic {to!r}, where it was read. Make it, or send it elsewhere (--to TOPIC)"
                if self._to is None
                else f"there is no topic {to!r} to replay to"
            )
        number = letter.note.partition
        chosen: Sequence[int] | None = None
        if self._to is None and number is not None and number < self._counts[to]:
            chosen = (number,)
        elif letter.key is not None:
            chosen = self._choose(to, letter.key, self._counts[to])
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
