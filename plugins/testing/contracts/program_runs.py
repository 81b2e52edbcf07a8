"""Runs of a program over a history of records, batches, moves and crashes: their answers, and the growth of state."""

from __future__ import annotations

import os
import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from math import inf
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from penstock import (
    Application,
    Commit,
    ConfigError,
    ManualClock,
    OutputBatch,
    Processor,
    Record,
    TaskCommitter,
    ValueTransformer,
    default_partitioner,
)
from penstock.plugins.engine.program.visits import program_visitors
from penstock.plugins.engine.task.shipping import pack

from ..driver import AutoCreatingLog, TopologyTestDriver
from .child import children_for

Event = tuple[str, Record]
"""A record and its topic."""
Step = tuple[str, Any]
"""What a driver does: ("send", batches), ("clock", ms), ("visit", (visitor, argument)) or ("move", None)."""
_FIRST_OFFSET, _GAPS = 7, (1, 0, 0, 3, 0, 2)
"""Where offsets begin, and how many a log leaves out after records."""


class _Placed(NamedTuple):
    """A record that was sent: its timestamp and its partition."""

    timestamp: int
    partition: int


Timed = TypeVar("Timed", Record, _Placed)
"""What has a timestamp."""


class ClockStep(NamedTuple):
    """A step of the wall clock, as passed to a reference with `sees_clock` between the records."""

    now_ms: int


@dataclass
class History:
    """Records in batches, each followed by a step of the wall clock in ms; tasks move before the batches `moves`."""

    batches: Sequence[Sequence[Event]]
    clock: Sequence[int]
    moves: frozenset[int] = frozenset()

    def __str__(self) -> str:
        shown = [
            batch if len({topic for topic, _ in batch}) > 1 else [record for _, record in batch]
            for batch in self.batches
        ]
        return f"batches {shown}; the wall clock moves by {list(self.clock)} ms; tasks move before {sorted(self.moves)}"


@dataclass(frozen=True)
class Ends:
    """The outer topics that a program reads, in the order of its sources, and writes; those of global stores."""

    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    everywhere: frozenset[str]

    @classmethod
    def of(cls, application: Application) -> Ends:
        """Return the topics of a program. Raises ConfigError for one that names none."""
        program = application.program
        sources, sinks = dict.fromkeys(program.topics()), program.sink_topics()
        if not sources or not sinks:
            raise ConfigError(
                f"ProcessorContract: the program reads topics and writes topics by name, found {list(sources)} and "
                f"{list(sinks)}: use TopologyTestDriver"
            )
        stores = program.global_stores
        return cls(tuple(sources), sinks, frozenset(topic for store in stores for topic in store.source.topics))


class Sender:
    """Turns a history into the steps of a driver, and records the input of each partition.

    Keys are spread over the partitions in the order in which they come; with repartition topics as their producers
    spread them, since these do so. A part has the records of each sending in the order in which its task takes them.
    Not `by_partition`: everything is noted as one part. Dicts in every other value are put in another order: equal ones
    come in several.
    """

    def __init__(self, driver: TopologyTestDriver, ends: Ends, partitions: int, *, by_partition: bool) -> None:
        self._driver = driver
        self._ends = ends
        self._count = partitions
        self._by_partition = by_partition
        self._by_hash = bool(driver.application.program.internal_topics)
        self._partitions: dict[bytes, int] = {}
        self._without_key = 0
        self._sent_count = 0
        self._order: list[list[tuple[str, int]]] = [[] for _ in range(partitions if by_partition else 1)]
        self._now_ms = driver.wall_clock_ms

    def steps(self, history: History) -> Iterator[Step]:
        """Yield the steps."""
        for number, batch in enumerate(history.batches):
            if number in history.moves:
                yield "move", None
            portion: list[Event] = []
            for event in batch:
                # Global stores are read before anything else: what they get is sent by itself, or it would come early.
                if event[0] in self._ends.everywhere:
                    yield "send", self._batches(portion)
                    yield "send", self._batches([event])
                    portion = []
                else:
                    portion.append(event)
            yield "send", self._batches(portion)
            if ms := history.clock[number]:
                self._now_ms += ms
                for order in self._order:
                    order.append(("", self._now_ms))
                yield "clock", ms

    def _batches(self, events: Sequence[Event]) -> list[OutputBatch]:
        made: dict[str, OutputBatch] = {}
        placed: dict[str, list[_Placed]] = {topic: [] for topic in self._ends.sources}
        for topic, record in events:
            self._sent_count += 1
            if self._sent_count % 2:
                record = record.with_value(_in_other_order(record.value))
            one = self._driver._serialized(topic, [record], None)
            partition = self._partition(one.keys[0])
            placed[topic].append(_Placed(record.timestamp, partition))
            batch = made.setdefault(topic, OutputBatch(topic, [], [], [], [], []))
            assert batch.headers is not None and batch.partitions is not None, f"{topic}: a batch without headers"
            batch.keys += one.keys
            batch.values += one.values
            batch.timestamps += one.timestamps
            batch.headers.append(tuple(record.headers))
            batch.partitions.append((partition,))
        for number, order in enumerate(self._order):
            mine = {topic: [row for row in rows if self._is_of(number, topic, row)] for topic, rows in placed.items()}
            order.extend((topic, each.partition) for topic, each in merged(mine))
        return list(made.values())

    def _is_of(self, number: int, topic: str, placed: _Placed) -> bool:
        return not self._by_partition or placed.partition == number or topic in self._ends.everywhere

    def _partition(self, key: bytes | None) -> int:
        if key is None:
            self._without_key += 1
            return self._without_key % self._count
        if self._by_hash:
            return default_partitioner(key, self._count)
        return self._partitions.setdefault(key, len(self._partitions) % self._count)

    def parts(self, driver: TopologyTestDriver, *, tagged: bool, sees_clock: bool) -> list[list[Any]]:
        """Return the sent records by partition, in the order of reading; with `tagged`, (topic, record) pairs."""
        sent = {topic: driver.sent(topic) for topic in self._ends.sources}
        parts: list[list[Any]] = []
        for order in self._order:
            rest = {(topic, number): iter(rows) for topic, each in sent.items() for number, rows in enumerate(each)}
            part: list[Any] = []
            for topic, number in order:
                if topic:
                    record = next(rest[topic, number])
                    part.append((topic, record) if tagged else record)
                elif sees_clock:
                    part.append(ClockStep(number))
            parts.append(part)
        return parts


def _in_other_order(value: Any) -> Any:
    """Return an equal value, whose dicts have their items in the order from the last to the first."""
    if type(value) is dict:
        return {key: _in_other_order(each) for key, each in reversed(value.items())}
    return [_in_other_order(each) for each in value] if type(value) is list else value


def do(driver: TopologyTestDriver, steps: Iterable[Step]) -> None:
    """Let a driver do steps; a crashed step is repeated until it succeeds."""
    for kind, given in steps:
        try:
            if kind == "send":
                driver.pipe_raw(*given)
            elif kind == "clock":
                driver.advance_wall_clock(f"{given}ms")
            elif kind == "visit":
                driver.visit(*given)
            else:
                driver.move()
        except Crash:
            _until_done(driver)


def _until_done(driver: TopologyTestDriver) -> None:
    while True:
        try:
            return driver.advance_wall_clock("0ms")
        except Crash:
            continue


class Crash(Exception):
    """The process of a commit ended before it took place."""


class WatchedLog(AutoCreatingLog):
    """A memory log that notes commits, and in which every other one crashes while it `crashes`.

    Topics have `partitions` partitions. Offsets do not begin at 0, and have gaps, as where records were deleted and
    transactions have markers. After `commits_left` commits of a visit, each raises AssertionError.
    """

    def __init__(self, partitions: int) -> None:
        super().__init__(lambda topic: partitions, ManualClock(0))
        self._gaps = cycle(_GAPS)
        self.crashes = False
        self.commits_left = inf
        self.engine_state_bytes: dict[str, int] = {}
        """By task: bytes of the last commit's engine state."""
        self._has_crashed = False

    def create_topic(self, name: str, partitions: int, *given: Any, **options: Any) -> None:
        super().create_topic(name, partitions, *given, **options)
        for partition in self._topic(name).partitions:
            partition.end = _FIRST_OFFSET

    def append(self, batch: OutputBatch) -> None:
        super().append(batch)
        self._leave_gaps([batch])

    def _leave_gaps(self, outputs: Sequence[OutputBatch]) -> None:
        for topic in dict.fromkeys(output.topic for output in outputs):
            for partition in self._topic(topic).partitions:
                partition.end += next(self._gaps)

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[Any]) -> TaskCommitter:
        committer = super().open_committer(application_id, task_id, partitions)
        make = committer.commit

        def commit(commit: Commit, outputs: Sequence[OutputBatch]) -> None:
            self.commits_left -= 1
            assert self.commits_left >= 0, (
                "a visit does not end: it puts keys that it visits as well, again and again. Put keys that come before "
                "the visited one in the order of their bytes, or leave what is done already alone"
            )
            self._has_crashed = self.crashes and not self._has_crashed
            if self._has_crashed:
                raise Crash
            make(commit, outputs)
            self._leave_gaps(outputs)
            self.engine_state_bytes[task_id] = len(commit.engine_state)

        committer.commit = commit  # type: ignore[method-assign]
        return committer


def repeated(
    events: Sequence[Event], sources: Iterable[str], rounds: int, time: Callable[[int, int], int]
) -> list[Event]:
    """Return `events` so often, in the order in which a task takes them; `time(round, timestamp)` returns new times."""
    by_topic: dict[str, list[Record]] = {topic: [] for topic in sources}
    for number in range(rounds):
        for topic, record in events:
            by_topic[topic].append(record._replace(timestamp=time(number, record.timestamp)))
    return merged(by_topic)


def merged(drawn: Mapping[str, Sequence[Timed]]) -> list[tuple[str, Timed]]:
    """Return the records of all topics in the order in which a task takes them: the lowest timestamp of the heads."""
    rest = {topic: list(reversed(records)) for topic, records in drawn.items()}
    events: list[tuple[str, Timed]] = []
    while some := [topic for topic, records in rest.items() if records]:
        topic = min(some, key=lambda each: rest[each][-1].timestamp)
        events.append((topic, rest[topic].pop()))
    return events


Visit = tuple[str, Any]
"""A visitor, NODE.METHOD, and the argument of its visit."""


def visits_of(application: Application, arguments: Mapping[str, Any]) -> list[Visit]:
    """Return a visit for each visitor of a program. Raises ConfigError where one lacks its argument, or has none."""
    visitors = program_visitors(application)
    takes = sorted(name for name, (_, each) in visitors.items() if each.takes_argument)
    needs = {name for name, (_, each) in visitors.items() if each.needs_argument}
    if not needs <= arguments.keys() <= set(takes):
        raise ConfigError(
            f"ProcessorContract: the visitors {takes} of the program take an argument: let `visit_arguments` be a "
            f"mapping of them to JSON data, found {dict(arguments)}"
        )
    return [(name, arguments.get(name)) for name in sorted(visitors)]


class SecondProcess:
    """Sets and hashes of text have another order there, and nothing of this process is there but what is committed."""

    def __init__(self) -> None:
        seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
        self._stack = ExitStack()
        self._connection = self._stack.enter_context(children_for(hash_seed=seed).started(_serve))

    def __enter__(self) -> SecondProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def do(self, application: Application, steps: Sequence[Step], options: dict[str, Any]) -> None:
        """Let a driver with `options` do steps there. Fails with the traceback of an error."""
        self._connection.send((pack(application), list(steps), options))
        failed = self._connection.recv()
        assert not failed, f"in a second process the program failed:\n{failed}"


def _serve(connection: Connection) -> None:
    """Do steps until the connection ends."""
    while True:
        try:
            packed, steps, options = connection.recv()
        except EOFError:
            return
        failed = ""
        try:
            with TopologyTestDriver(pickle.loads(packed), **options) as driver:
                do(driver, steps)
        except BaseException:
            failed = traceback.format_exc()
        connection.send(failed)


def answers_by_key(driver: TopologyTestDriver, topics: Sequence[str], by_partition: bool) -> dict[str, object]:
    """Return the records of topics by topic and key, in order where a partition's answers are in one order."""
    found: dict[str, list[Record]] = {}
    for topic in topics:
        for record in driver.read_all(topic):
            found.setdefault(f"topic {topic}, key {record.key!r}", []).append(record)
    return {name: records if by_partition else sorted(records, key=repr) for name, records in found.items()}


def stored(driver: TopologyTestDriver) -> dict[str, object]:
    """Return the rows of logged stores as bytes, by store, task and key."""
    process = driver._processes.running(looking=True)
    found: dict[str, object] = {}
    for task, partitions in driver._tasks.items():
        driver._stores(process, task)
        state = process.worker(task, partitions, len(driver._tasks))._state
        assert state is not None, f"task {task} is not open after a look into it"
        found |= {f"store {store}, task {task}, row {key!r}": value for store, key, value in state.rows()}
    return found


def compare(expected: Sequence[Sequence[Any]], found: Sequence[Record], where: str, how: str) -> None:
    """Compare the answers of each key: in order if one partition gives them, else by number.

    Numbers are to be of the same type, too: 3 and 3.0 are equal in Python, and other bytes in most serdes.
    """
    wanted: dict[str, list[tuple[int, tuple[Any, ...]]]] = {}
    for partition, answers in enumerate(expected):
        for answer in answers:
            wanted.setdefault(repr(answer[0]), []).append((partition, tuple(answer)))
    got: dict[str, list[Record]] = {}
    for record in found:
        got.setdefault(repr(record.key), []).append(record)
    for key in sorted(wanted.keys() | got.keys()):
        of_key = wanted.get(key, [])
        answers = [answer for _, answer in of_key]
        lengths = {len(answer) for answer in answers} or {len(Record._fields)}
        given = [tuple(record[: max(lengths)]) for record in got.get(key, [])]
        if len({partition for partition, _ in of_key}) < 2:
            same = given == answers and list(map(_numbers, given)) == list(map(_numbers, answers))
        else:
            same = Counter(map(_text, given)) == Counter(map(_text, answers))
        assert same, f"{where}key {key}: the program answered {given}, the reference {answers}; with {how}"


def _text(value: Any) -> str:
    """Return a text that is the same for equal values whose dicts have another order."""
    if type(value) is dict:
        return f"{{{', '.join(sorted(f'{_text(key)}: {_text(each)}' for key, each in value.items()))}}}"
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    return repr(value)


def _numbers(value: Any) -> Any:
    """Return the types of the numbers in a value, which is equal for values that agree in them."""
    if type(value) is dict:
        return {key: _numbers(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return list(map(_numbers, value))
    return type(value) if type(value) in (bool, int, float) else None


_ROUNDS = (8, 16, 32)
_YEAR_MS = 366 * 86_400_000
_LITTLE = 8
"""So many bytes, or elements, more a round are no growth: numbers get more digits."""


def check_growth(events: Sequence[Event], make: Callable[..., TopologyTestDriver], ends: Ends) -> None:
    """Send `events` again and again, each time a year later; fail if state grows with each round."""
    made: list[Any] = []

    def noted(node: str, processor: Processor | ValueTransformer) -> Processor | ValueTransformer:
        made.append(processor)
        return processor

    sizes: list[dict[str, int]] = []
    log = WatchedLog(1)
    with make(processor_wrapper=noted, log=log, commit_every=max(1, len(events))) as driver:
        sender = Sender(driver, ends, 1, by_partition=True)
        for number in range(max(_ROUNDS)):
            later = [
                (topic, record._replace(timestamp=record.timestamp + number * _YEAR_MS)) for topic, record in events
            ]
            do(driver, sender.steps(History([later], [_YEAR_MS])))
            if number + 1 in _ROUNDS:
                sizes.append(
                    {
                        "bytes in its stores": driver._processes.stored_bytes(),
                        "bytes of schedules and other saved values": sum(log.engine_state_bytes.values()),
                        **{f"elements in attributes of {type(each).__name__}": _elements(each, 3) for each in made},
                    }
                )
    first, middle, last = sizes
    rounds = ", ".join(map(str, _ROUNDS))
    for what in last:
        early = (middle[what] - first[what]) / (_ROUNDS[1] - _ROUNDS[0])
        late = (last[what] - middle[what]) / (_ROUNDS[2] - _ROUNDS[1])
        assert late <= max(_LITTLE, early / 2), (
            f"the program has {first[what]}, {middle[what]} and {last[what]} {what} after {rounds} "
            "rounds of the same records, a year apart: let entries expire (`ttl`, `retention`) or delete them; say "
            f"`bounded = False` where they are to be kept. Records of a round: {list(events)}"
        )


def _elements(value: Any, depth: int) -> int:
    """Return the number of elements in the containers of a processor's attributes."""
    if isinstance(value, dict):
        inside = [*value.values()]
    elif isinstance(value, list | set | tuple) or hasattr(value, "popleft"):
        inside = list(value)
    elif depth == 3:
        return sum(_elements(each, 2) for each in vars(value).values())
    else:
        return 0
    return len(inside) + (sum(_elements(each, depth - 1) for each in inside[:1000]) if depth > 1 else 0)
