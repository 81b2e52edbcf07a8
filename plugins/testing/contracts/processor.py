"""The tests that every stream program should pass; subclass `ProcessorContract` to run them over yours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import zip_longest
from math import inf
from typing import Any, ClassVar, NamedTuple

from hypothesis import HealthCheck, Phase, given, reproduce_failure, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase

from penstock import Application, ConfigError, Duration, Record, Topology, TopologyBuilder, duration_ms
from penstock.plugins.engine.program.stored_id import renamed
from penstock.plugins.engine.task.shipping import pack
from penstock.plugins.engine.task.temporary import TemporaryDirectory

from ..driver import TopologyTestDriver
from ..processes import ShippedCopy
from ..strategies import streams
from .expectations import declared
from .program_runs import (
    Ends,
    Event,
    History,
    SecondProcess,
    Sender,
    Visit,
    WatchedLog,
    answers_by_key,
    check_growth,
    compare,
    do,
    merged,
    repeated,
    stored,
    visits_of,
)
from .surroundings import WEEK_SECONDS, ZONES, MachineClock, in_other_surroundings

_BLOB = re.compile(r"\n?[^\n]*@reproduce_failure\(([^)]*)\)[^\n]*")
_MOST_CLOCK_STEPS, _MOST_COMMITS = 6, 1_000
_WRONG_INPUT = (
    "streams() has tombstones, null keys and headers unless they are switched off: "
    "streams(tombstones=False, null_keys=False, headers=False)"
)


class _Left(NamedTuple):
    """The result of a run: answers by topic, records by partition, and changes seen in the program's code."""

    answers: Mapping[str, Sequence[Record]]
    parts: list[list[Any]]
    changed_values: list[str]
    hints: list[str]


class ProcessorContract:
    """A program compared with a function in plain Python that says what it answers; run it in a test class of yours.

    >>> from penstock import Topology, ValueTransformer
    >>> class Double(ValueTransformer):
    ...     def transform(self, key, value):
    ...         return None if value is None else 2 * value
    >>> def doubling():
    ...     topology = Topology().add_source("in", "numbers", value_serde="int").add_processor("double", Double, "in")
    ...     return topology.add_sink("out", "doubled", "double", value_serde="int")
    >>> class TestDouble(ProcessorContract):
    ...     program = staticmethod(doubling)
    ...     reference = staticmethod(lambda records: [(key, value and 2 * value) for key, value, *_ in records])

    The answers have to be the same with any number of partitions, when tasks are re-opened after each commit, move or
    continue in a process with another hash seed, when records are processed again after a crash, however many records a
    task processes between two commits, in another thread, time zone and year, and where the same program runs beside
    it; and state must not grow for ever. So state outside stores is found, a store that is not logged, a changelog that
    lost something, an effect outside that is repeated, the order of a set, a record's value that is changed in place,
    and whatever depends on where a batch ends or when and where it is processed.

    Needs pytest and hypothesis (`pip install 'penstock-streams[testing]'`).
    """

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
    """Whether state must stay bounded when the same records are repeated, with a year between them."""
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
    """The seed of the streams: the same number gives the same ones in each run."""
    replay: ClassVar[tuple[str, bytes] | None] = None
    """A failure to repeat alone, as given in its message. Without it, the last failure is tried first."""

    def test_it_answers_as_the_reference(self) -> None:
        """A program answers as the reference: in one partition, with a commit after each record."""
        self._try(lambda data: self._check(self._history(data, alone=True)))

    def test_any_number_of_partitions(self) -> None:
        """Records of one key are in one partition; each partition has a task with state of its own."""
        partitions = st.integers(2, _MOST_PARTITIONS)
        self._try(lambda data: self._check(self._history(data, alone=True), partitions=data.draw(partitions)))

    def test_tasks_are_reopened(self) -> None:
        """Tasks are re-opened after each commit, as on Spark: all state has to be in stores."""
        self._try(lambda data: self._check(self._history(data, alone=True), reopen_tasks=True))

    def test_any_batches(self) -> None:
        """The ends of batches do not affect answers, also with caches and buffers that are written at commits."""

        def check(data: st.DataObject) -> None:
            partitions, commit_every = data.draw(st.integers(1, 2)), data.draw(st.integers(2, _MOST_TOGETHER))
            self._check(self._history(data), partitions=partitions, commit_every=commit_every)

        self._try(check)

    def test_tasks_move(self) -> None:
        """Tasks move between some batches to hosts that have to restore their state, as in a rebalance."""

        def check(data: st.DataObject) -> None:
            commit_every = data.draw(st.integers(1, _MOST_TOGETHER))
            self._check(self._history(data, moves=True), partitions=2, commit_every=commit_every)

        self._try(check)

    def test_records_are_processed_again_after_a_crash(self) -> None:
        """Effects of a record before a crash must not show: neither in answers, nor outside."""

        def check(data: st.DataObject) -> None:
            history, commit_every = self._history(data), data.draw(st.integers(1, _MOST_TOGETHER))
            once, again = (self._effects(history, crashes, commit_every=commit_every) for crashes in (False, True))
            for name in once:
                assert once[name] == again.get(name), (
                    f"{name} is {once[name]!r} when records are processed once, and {again.get(name)!r} when some are "
                    "processed again after a crash, as on Spark. Only stores and outputs go back with the commit: "
                    f"write to a topic, and act on that; with {history}"
                )

        self._try(check)

    def test_a_second_process_continues(self) -> None:
        """A second process continues from committed data alone; its hash seed differs, so sets have another order."""
        with TemporaryDirectory("contract") as directory, SecondProcess() as second:
            runs: list[int] = []

            def check(data: st.DataObject) -> None:
                runs.append(1)
                place = directory / str(len(runs))
                options = {"log": f"local:{place / 'log'}", "changelog": f"directory:{place / 'changelog'}"}
                history, at = self._history(data), data.draw(st.integers(0, 9))
                with self._driver(partitions=2, **options) as driver:
                    sender = self._sender(driver, 2)
                    steps = list(sender.steps(history))
                    half = len(steps) * at // 10
                    do(driver, steps[:half])
                    clock = {"initial_wall_clock_ms": driver.wall_clock_ms}
                second.do(self._application, steps[half:], {"partitions": 2, **self.options, **options, **clock})
                with self._driver(partitions=2, **options) as driver:
                    self._compare(
                        self._left(driver, sender), f"a second process from step {half} of {len(steps)} on; {history}"
                    )

            self._try(check, _ELSEWHERE)

    def test_visits_are_interrupted(self) -> None:
        """A visitor that is called key by key, through crashes and new processes, has the same result as in one go.

        There are two visits: only stores may know of the first one's work.
        """
        visitors = visits_of(self._application, self.visit_arguments)

        def check(data: st.DataObject) -> None:
            history, visit = self._history(data), data.draw(st.sampled_from(visitors))
            place, partitions = data.draw(st.integers(0, 10)), data.draw(st.integers(1, 2))
            reopens = data.draw(st.booleans()) and type(self).probe is None  # a probe sees one process
            run = partial(self._visited, history, visit, place, partitions=partitions)
            parts, outside = run(log=WatchedLog(partitions), reopen_tasks=reopens)
            whole, expected = run(commit_every=_TOGETHER_IN_A_VISIT)
            if not reopens:  # else each key is visited in a process of its own
                parts, whole = parts | outside, whole | expected
            for name in whole | parts:
                assert whole.get(name) == parts.get(name), (
                    f"{name} is {whole.get(name)!r} when {visit[0]} visits all keys in one go, and {parts.get(name)!r} "
                    "when crashes and new processes come between two keys, as on Spark. Only stores and outputs go "
                    "back with the commit, and nothing else is there in the next process: let a visitor decide by its "
                    f"key, the value and stores alone. A visit comes after {place} tenths and at the end of {history}"
                )

        if visitors:
            self._try(check)

    def test_in_other_surroundings(self) -> None:
        """Another thread, time zone and a jumping clock of the machine change no answer."""

        def check(data: st.DataObject) -> None:
            history, zone = self._history(data, alone=True), data.draw(st.sampled_from(ZONES))
            clock = MachineClock(data.draw(st.integers(0, WEEK_SECONDS)))
            program = self._application  # made here, and not in the other thread
            left = in_other_surroundings(lambda: self._ran(history, clock=clock, program=program), zone)
            self._compare(
                left, f"a thread of its own, the time zone TZ={zone}, jumps of the machine's clock; {history}"
            )

        self._try(check)

    def test_at_other_times(self) -> None:
        """Records of today, of 2038 and of the year 9999, of which the wall clock may be far ahead, or far behind."""

        def check(data: st.DataObject) -> None:
            begin = int(data.draw(st.sampled_from(self.begins)).timestamp()) * 1000
            history = self._history(data, begin=begin)
            ahead = 0 if self.sees_clock else data.draw(st.sampled_from([0, begin, begin + _YEARS_MS]))
            self._check(history, initial_wall_clock_ms=ahead)

        if self.begins:
            self._try(check, _OF_OTHER_TIMES)

    def test_many_records(self) -> None:
        """More of them than a buffer, a cache or a limit has room for, in the time of a few."""

        def check(data: st.DataObject) -> None:
            if events := self._events(data):
                rounds = -(-_MANY_RECORDS // len(events))
                span = 1 + max(record.timestamp for _, record in events)
                sources = self._ends.sources
                many = repeated(events, sources, rounds, lambda number, time: (number * span + time) // rounds)
                batches = [many[at : at + _MOST_TOGETHER] for at in range(0, len(many), _MOST_TOGETHER)]
                self._check(History(batches, [0] * len(batches)), commit_every=_MOST_TOGETHER)

        self._try(check, _OF_MANY_RECORDS)

    def test_two_of_it_share_nothing(self) -> None:
        """Two run in one process, by turns, as two nodes of one class and two tasks do, with the same keys."""

        def check(data: st.DataObject) -> None:
            histories = self._history(data), self._history(data)
            with self._pair() as drivers:
                senders = [self._sender(driver, 1) for driver in drivers]
                steps = [sender.steps(history) for sender, history in zip(senders, histories, strict=True)]
                for both in zip_longest(*steps):
                    for driver, step in zip(drivers, both, strict=True):
                        do(driver, [step] if step else [])
                for number, (driver, sender) in enumerate(zip(drivers, senders, strict=True)):
                    how = f"the same program beside it in one process, with {histories[1 - number]}"
                    self._compare(self._left(driver, sender), f"{how}; its own {histories[number]}")

        self._try(check)

    def test_state_does_not_grow_for_ever(self) -> None:
        """State does not grow when records are repeated, a year apart: entries have to be deleted, or to expire."""
        if self.bounded:
            self._try(lambda data: check_growth(self._events(data), self._driver, self._ends), _GROWING)

    # ------------------------------------------------------------------ helpers

    def _try(self, check: Callable[[st.DataObject], None], most: int | None = None) -> None:
        """Call `check` with drawn data, `examples` times at most. Raises the error of the first example that fails.

        A failing example is kept in hypothesis' database, and tried first the next time. The error's notes say how to
        repeat it alone, which `replay` does. With `seed` the examples are the same each time, and none is kept.
        """
        suite, name = type(self), check.__qualname__.split(".")[1]
        phases = set(Phase) - ({Phase.explain} if self.shrinks else {Phase.shrink, Phase.explain})
        database = settings().database
        if database is not None:
            database = (
                None if self.seed is not None else _Own(database, f"{suite.__module__}.{suite.__qualname__}.{name}")
            )
        tried = settings(
            max_examples=self.examples if most is None else min(most, self.examples), phases=phases, deadline=None,
            suppress_health_check=[HealthCheck.too_slow], database=database, print_blob=True,
        )(given(st.data())(check))  # fmt: skip
        if self.seed is not None:
            tried = with_seed(self.seed)(tried)
        if self.replay is not None:
            tried = reproduce_failure(*self.replay)(tried)
        try:
            tried()
        except Exception as error:
            error.__notes__ = [_said(note, f"{suite.__qualname__}.{name}") for note in getattr(error, "__notes__", [])]
            raise

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
        batches = [[event] for event in events] if alone else data.draw(_cuts(events))
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
        """Return the result of a run; `clock`: the machine's, which jumps ahead with each step."""
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
        """Return the topics, stores and outside effects after a run with two visits; with a `log` the visits crash."""
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
        """Return the effects of a run outside stores and topics, by name."""
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
        """Return the answers, and the sent records."""
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


_MOST_PARTITIONS, _MOST_TOGETHER, _MANY_RECORDS = 3, 8, 1_200
_ELSEWHERE, _GROWING, _OF_OTHER_TIMES, _OF_MANY_RECORDS = 8, 5, 15, 2
"""Number of examples of tests whose examples take long."""
_YEARS_MS = 50 * 366 * 86_400_000
_TOGETHER_IN_A_VISIT = 1_000_000


def _said(note: str, test: str) -> str:
    """Return a note of hypothesis that says how to repeat an example in a suite, whose tests cannot be decorated."""
    return _BLOB.sub(rf"\nTo repeat this example alone, set `replay = (\1)` in the class, and run {test}", note)


class _Own(ExampleDatabase):
    """The part of a database that belongs to one test of one suite: the function that hypothesis sees is all theirs."""

    def __init__(self, database: ExampleDatabase, test: str) -> None:
        super().__init__()
        self._database = database
        self._test = test.encode() + b"\0"

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self._database.fetch(self._test + key)

    def save(self, key: bytes, value: bytes) -> None:
        self._database.save(self._test + key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        self._database.delete(self._test + key, value)
