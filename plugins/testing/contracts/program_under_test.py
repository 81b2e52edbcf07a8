"""The program that a `ProcessorContract` tests: which records it gets, and its runs over histories of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import cached_property
from math import inf
from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st

from penstock import Application, ConfigError, Duration, Record, Topology, TopologyBuilder, duration_ms
from penstock.plugins.engine.program.stored_id import renamed
from penstock.plugins.engine.task.shipping import pack

from ..driver import TopologyTestDriver
from ..processes import ShippedCopy
from ..strategies import streams
from .answers import answers_by_key, compare, stored
from .expectations import declared
from .program_runs import Ends, Event, History, Sender, Visit, WatchedLog, do, merged
from .surroundings import MachineClock
from .trying import try_examples

_MOST_CLOCK_STEPS, _MOST_COMMITS = 6, 1_000
_WRONG_INPUT = (
    "streams() has tombstones, null keys and headers unless they are switched off: "
    "streams(tombstones=False, null_keys=False, headers=False)"
)


class _Left(NamedTuple):
    """What a run leaves: answers by topic, the records by partition, and what was seen of the program's code."""

    answers: Mapping[str, Sequence[Record]]
    parts: list[list[Any]]
    changed_values: list[str]
    hints: list[str]


class ProgramUnderTest:
    """What a suite says of its program, and runs of it."""

    program: Callable[[], Topology | TopologyBuilder | Application] = declared(
        "a function that makes the topology, as a staticmethod"
    )
    """Makes the program, as a `staticmethod`."""
    reference: Callable[[list[Any]], Iterable[Any]] = declared(
        "a function from the records of a partition to the outputs, as a staticmethod"
    )
    """Returns the outputs for the records of one partition, in their order, as a `staticmethod`: each a Record, a tuple
    (key, value) or a tuple (key, value, timestamp). What a tuple leaves out is not compared. Where the program reads
    several topics, it gets pairs (topic, record), and where it writes several, it returns pairs (topic, output)."""
    records: ClassVar[st.SearchStrategy[list[Record]] | Mapping[str, st.SearchStrategy[list[Record]]]] = streams()
    """The records of the input topic; of several, a mapping of topics. The topics' records are processed in the order
    of their timestamps; of equal ones, those of the source that was added first. Records of a global store's topic are
    for all partitions."""
    by_partition: ClassVar[bool] = True
    """Whether a partition's answers depend on its own records only. Say False for a program with a repartition topic:
    `reference` then gets all records, and answers of different keys must not depend on each other."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Settings of the application."""
    wall_clock: ClassVar[Duration] = "1m"
    """By how much the wall clock moves on at most, now and then, between two batches."""
    sees_clock: ClassVar[bool] = False
    """Whether answers depend on the wall clock. `reference` then gets a ClockStep among the records for each step of
    it. It begins at 0."""
    probe: ClassVar[Callable[[], Sequence[Any]] | None] = None
    """Returns everything that the program has done outside so far, as a `staticmethod`: lines of a file, calls of a
    fake service. What is done again when records are processed again is a failure."""
    bounded: ClassVar[bool] = True
    """Whether state stays bounded when the same records come again and again, with a year between them."""

    begins: ClassVar[Sequence[datetime]] = (
        datetime(2024, 2, 28, 23, 59, tzinfo=UTC), datetime(2038, 1, 19, 3, 13, tzinfo=UTC),
        datetime(9999, 12, 31, tzinfo=UTC),
    )  # fmt: skip
    """When the records of `test_at_other_times` begin; those of other tests do at 0. Say () where `reference` counts
    the time up from 0, which would take long."""

    visit_arguments: ClassVar[Mapping[str, Any]] = {}
    """The arguments of visitors that take one, by NODE.METHOD: JSON data."""

    examples: ClassVar[int] = 40
    """How many streams each test tries."""
    shrinks: ClassVar[bool] = True
    """Whether the smallest stream that fails is looked for."""
    seed: ClassVar[int | None] = None
    """Chooses the streams: with one number they are the same in each run."""
    replay: ClassVar[tuple[str, bytes] | None] = None
    """A failure to repeat alone, as its message gives it. Without, what failed last is tried first."""

    def _try(self, check: Callable[[st.DataObject], None], most: int | None = None) -> None:
        """Call `check` with drawn examples."""
        test = check.__qualname__.split(".")[1]
        examples = self.examples if most is None else min(most, self.examples)
        try_examples(
            check, type(self), test, examples=examples, shrinks=self.shrinks, seed=self.seed, replay=self.replay
        )

    @cached_property
    def _application(self) -> Application:
        made = type(self).program()
        return made if isinstance(made, Application) else Application("test", made, **self.options)

    @cached_property
    def _ends(self) -> Ends:
        return Ends.of(self._application)

    def _events(self, data: st.DataObject) -> list[Event]:
        """Draw the records of all topics, in the order in which they are processed."""
        sources, given = self._ends.sources, self.records
        by_topic = given if isinstance(given, Mapping) else dict.fromkeys(sources[:1], given)
        if set(by_topic) != set(sources):
            raise ConfigError(
                f"ProcessorContract: the program reads the topics {list(sources)}: let `records` be a mapping of them "
                f"to strategies, found {list(by_topic) if isinstance(given, Mapping) else 'one strategy'}"
            )
        return merged({topic: data.draw(by_topic[topic]) for topic in sources})

    def _history(self, data: st.DataObject, *, alone: bool = False, moves: bool = False, begin: int = 0) -> History:
        """Draw a history; `alone`: with one record in each batch; `moves`: with moves of tasks; `begin`: in ms."""
        drawn = self._events(data)
        events = [(topic, record._replace(timestamp=begin + record.timestamp)) for topic, record in drawn]
        batches = [[each] for each in events] if alone else data.draw(_cuts(events))
        place, most = st.integers(0, max(0, len(batches) - 1)), duration_ms(self.wall_clock, "wall_clock")
        step = st.integers(0, most // 1000).map(lambda seconds: seconds * 1000) | st.integers(0, most)
        clock = [0] * len(batches)
        for at, ms in data.draw(st.lists(st.tuples(place, step), max_size=_MOST_CLOCK_STEPS)) if batches else ():
            clock[at] = ms
        return History(batches, clock, frozenset(data.draw(st.sets(place))) if moves else frozenset())

    def _driver(self, **given: Any) -> TopologyTestDriver:
        program = given.pop("program", None) or type(self).program()
        return TopologyTestDriver(program, **{**self.options, **given})

    def _sender(self, driver: TopologyTestDriver, partitions: int) -> Sender:
        return Sender(driver, self._ends, partitions, by_partition=self.by_partition)

    @contextmanager
    def _pair(self) -> Iterator[list[TopologyTestDriver]]:
        """Make two drivers of one copy of the program, under two names; for a probe of the original."""
        with ExitStack() as stack:
            program = self._application
            if type(self).probe is None:
                copy = ShippedCopy(program, pack(program))
                stack.enter_context(copy.in_place())
                program = copy.application
            both = [renamed(program, f"{program.id}-{number}") for number in (1, 2)]
            yield [stack.enter_context(TopologyTestDriver(each, log=WatchedLog(1))) for each in both]

    @contextmanager
    def _isolated(self, **given: Any) -> Iterator[TopologyTestDriver]:
        """Make a driver that runs a copy of the program, so that no example sees another; for a probe the original."""
        with self._driver(**given) as driver:
            if type(self).probe is None:
                driver.reopen()
            yield driver

    def _check(self, history: History, *, partitions: int = 1, **given: Any) -> None:
        left = self._ran(history, partitions=partitions, **given)
        if left.changed_values:
            raise AssertionError(f"{left.changed_values[0]}; with {history}")
        how = ", ".join(f"{name} {value}" for name, value in {"partitions": partitions, **given}.items())
        self._compare(left, f"{how}; {history}")

    def _ran(self, history: History, *, partitions: int = 1, clock: MachineClock | None = None, **given: Any) -> _Left:
        """Return what a run leaves; `clock`: the machine's, which jumps ahead with each step."""
        with self._isolated(partitions=partitions, log=WatchedLog(partitions), **given) as driver:
            sender = self._sender(driver, partitions)
            if clock is not None:
                driver._processes.running().let(clock.show)
            for step in sender.steps(history):
                do(driver, [step])
                if clock is not None:
                    clock.jump()
            return self._left(driver, sender)

    def _visited(
        self, history: History, visit: Visit, place: int, log: WatchedLog | None = None, **given: Any
    ) -> tuple[dict[str, object], dict[str, object]]:
        """Return what a run with two visits leaves in topics and stores, and outside; with a `log` the visits crash."""
        probe = type(self).probe
        before = 0 if probe is None else len(probe())
        with self._isolated(log=log, **given) as driver:
            steps = list(self._sender(driver, given["partitions"]).steps(history))
            half = len(steps) * place // 10
            for part, most in ((steps[:half], half), (steps[half:], len(steps))):
                do(driver, part)
                if log is not None:
                    log.crashes, log.commits_left = True, _MOST_COMMITS + 20 * most
                do(driver, [("visit", visit)])
                if log is not None:
                    log.crashes, log.commits_left = False, inf
            outside = driver._processes.running().outside()
            if probe is not None:
                outside = {"what the probe returns": list(probe())[before:]}
            return answers_by_key(driver, self._ends.sinks, self.by_partition) | stored(driver), outside

    def _effects(self, history: History, crashes: bool, **given: Any) -> dict[str, object]:
        """Return what a run leaves outside stores and topics, by name."""
        log, probe = WatchedLog(1), type(self).probe
        before = 0 if probe is None else len(probe())
        with self._isolated(log=log, **given) as driver:
            sender = self._sender(driver, 1)
            log.crashes = crashes
            do(driver, sender.steps(history))
            log.crashes = False
            left = driver._processes.running().outside()
            self._compare(
                self._left(driver, sender), f"{'crashes at every other commit; ' if crashes else ''}{history}"
            )
            return left if probe is None else {"what the probe returns": list(probe())[before:]}

    def _left(self, driver: TopologyTestDriver, sender: Sender) -> _Left:
        """Return the answers, and what was sent."""
        found = {topic: driver.read_all(topic) for topic in self._ends.sinks}
        parts = sender.parts(driver, tagged=len(self._ends.sources) > 1, sees_clock=self.sees_clock)
        changed = list(driver._processes.misuse.changed_values)
        if any(found.values()):
            driver.reopen()
        return _Left(found, parts, changed, driver.hints)

    def _compare(self, left: _Left, how: str) -> None:
        """Compare the answers of each topic with those of the reference."""
        sinks = self._ends.sinks
        expected: dict[str, list[list[Any]]] = {topic: [] for topic in sinks}
        for part in left.parts:
            for each in expected.values():
                each.append([])
            for answer in self._reference(part) if part else ():
                topic, given = answer if len(sinks) > 1 else (sinks[0], answer)
                expected[topic][-1].append(given)
        how = "; ".join([how, *left.hints])
        for topic in sinks:
            compare(expected[topic], left.answers[topic], f"topic {topic}: " if len(sinks) > 1 else "", how)

    def _reference(self, part: list[Any]) -> list[Any]:
        try:
            answers = list(type(self).reference(part))
        except Exception as error:
            error.add_note(f"Raised by the reference for {part}. {_WRONG_INPUT}")
            raise
        several = len(self._ends.sinks) > 1
        for answer in answers:
            output = answer[1] if several and isinstance(answer, tuple | list) and len(answer) == 2 else answer
            if not isinstance(output, tuple | list) or not 2 <= len(output) <= len(Record._fields):
                outputs = "a Record, a tuple (key, value) or a tuple (key, value, timestamp)"
                wanted = f"pairs (topic, output), each output {outputs}" if several else outputs
                raise ConfigError(
                    f"ProcessorContract: the reference of {type(self).__name__} returned {answer!r} among its outputs, "
                    f"expected {wanted}"
                )
        return answers


def _cuts(events: list[Event]) -> st.SearchStrategy[list[list[Event]]]:
    """Return a strategy of records in batches."""
    places = st.sets(st.integers(1, max(1, len(events) - 1))).map(sorted)
    return places.map(
        lambda cuts: [events[start:end] for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    )
