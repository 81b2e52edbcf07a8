"""SimulationContract: a program answers in simulated histories as without faults; `soak` plays many of them."""

from __future__ import annotations

import inspect
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing import get_context
from random import Random
from time import perf_counter
from typing import Any, ClassVar, Literal

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import Application, ConfigError, Record, Topology, TopologyBuilder

from ..driver import TopologyTestDriver
from .faults import Place
from .history import COMMIT_INTERVALS, History, Step, with_copy_faults
from .host_world import SimulationFailure
from .simulation import Simulation, is_on_disk, with_takeovers
from .transfers import BackupSimulation, ReshardSimulation, with_backups, with_reshards

_KEYS = ("ann", "bob", "cid", "dot")
_MOST_RECORDS = 20
MODES = ("continuous", "batches")


def some_records(random: Random) -> list[Record]:
    """Return up to 20 records of four keys, with numbers from 0 to 9, whose times go on by up to a second each."""
    at, found = 0, []
    for _ in range(random.randrange(_MOST_RECORDS)):
        at += random.choice((0, 1, 100, 1_000))
        found.append(Record(random.choice(_KEYS), random.randrange(10), at))
    return found


class SimulationContract:
    """A program in simulated histories: hosts die, freeze and wake, lose the log, their disks and their tasks.

    The program runs by the engine's own code, in one process, over a log in memory. Its answers have to be those that
    it gives without faults, each once. Its stores, as the last host has them, have to be those that are restored from
    the changelog. And everything has to be processed once faults end. Run it in a test class of yours:

    >>> from penstock import Topology, ValueTransformer
    >>> class Double(ValueTransformer):
    ...     def transform(self, key, value):
    ...         return 2 * value
    >>> def doubling():
    ...     topology = Topology().add_source("in", "numbers", value_serde="int").add_processor("double", Double, "in")
    ...     return topology.add_sink("out", "doubled", "double", value_serde="int")
    >>> class TestDouble(SimulationContract):
    ...     program = staticmethod(doubling)

    A failure prints the shortest history that fails, as found by leaving out steps, with the command that runs the
    original one again.

    Needs pytest, hypothesis and greenlet (`pip install 'penstock-streams[testing]'`).
    """

    program: Callable[[], Topology | TopologyBuilder | Application]
    """Makes the program, as a `staticmethod`."""
    reference: Callable[[list[Record]], Iterable[Any]] | None = None
    """Returns the answers for the records of one partition, in their order, as a `staticmethod`: each a Record, a tuple
    (key, value) or a tuple (key, value, timestamp). None: the answers of `TopologyTestDriver`, whose wall clock stands
    still; a program with punctuators or timers of the wall clock needs a function."""
    deployments: Sequence[Callable[[], Topology | TopologyBuilder | Application]] = ()
    """Make programs that take the place of the first one, one after the other, in the middle of a history: they have to
    give the same answers."""
    records: Callable[[Random], list[Record] | Mapping[str, Sequence[Record]]] = staticmethod(some_records)
    """Makes the records from random choices, as a `staticmethod`; a mapping where the program reads several topics."""
    compared: ClassVar[Literal["in order", "in any order", "latest", "at least once", "with gaps", "any of them"]] = (
        "in order"
    )
    """Which answers of a key have to be the same: all, in order; all, in any order, where several tasks write a key;
    or the latest one only, where the record cache leaves out others (tables and aggregations of the DSL). At least
    once, some may come again. With gaps, some may be missing, where records are deleted before they are read; any of
    them, some may come again, too, where a topic was made again and is read from its start."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Settings of the application; also `partitions` and `hosts` (2 each), `topics`, the settings of topics, and, to
    be simulated as well, `replicas`, `standbys`, `backups`, and `reshard`: growing numbers of partitions."""
    simulation: ClassVar[type[Simulation]] = Simulation
    """What plays the histories."""
    examples: ClassVar[int] = 30
    """How many histories each test tries."""
    shrinks: ClassVar[bool] = True
    """Whether the shortest history that fails is looked for, which may take half a minute."""

    def test_batches(self) -> None:
        """Check histories in batches, as Spark's micro-batches."""
        self._try("batches")

    def test_continuously(self) -> None:
        """Check histories in the continuous mode, with commits and openings in other threads."""
        self._try("continuous")

    def _try(self, mode: str) -> None:
        # Hypothesis chooses seeds, and tries the one that failed first next time.
        seeds = st.integers(0, 2**32).map(lambda number: number * len(MODES) + MODES.index(mode))
        failed = 0

        def play(seed: int) -> None:
            nonlocal failed
            failed = seed
            type(self).play(seed)

        with in_memory():
            try:
                settings(
                    max_examples=self.examples, deadline=None, suppress_health_check=list(HealthCheck),
                    phases=(Phase.explicit, Phase.reuse, Phase.generate),
                )(given(seeds)(play))()  # fmt: skip
            except SimulationFailure as failure:
                shortest = type(self).shortest(failed, failure) if self.shrinks else failure
                where = f"{inspect.getfile(type(self))}:{type(self).__qualname__}"
                shortest.add_note(f"The same history again: penstock simulate {where} --start {failed} --seeds 1")
                raise shortest from None

    @classmethod
    def play(cls, seed: int) -> Simulation:
        """Run the history of a seed, and check it; return the simulation, for its story.

        The same seed makes the same history. Even ones run in continuous mode, odd ones in batches. Raises
        SimulationFailure.
        """
        return cls._play_case(cls._case(seed), MODES[seed % len(MODES)])

    @classmethod
    def shortest(cls, seed: int, failure: SimulationFailure) -> SimulationFailure:
        """Return the failure of the shortest history that is found by leaving out parts of that of the seed."""
        mode = MODES[seed % len(MODES)]
        return shrink(cls._case(seed), failure, lambda case: cls._play_case(case, mode))

    @classmethod
    def _case(cls, seed: int) -> Case:
        random = Random(seed)
        drawn = cls.records(random)
        records = drawn if isinstance(drawn, Mapping) else {_only_source(cls): drawn}  # type: ignore[arg-type]  # mypy: no class has a hash
        history = with_takeovers(History.of(random, on_disk=is_on_disk(cls.options)), Random(f"takeovers {seed}"))
        history = with_copy_faults(history, Random(f"copies {seed}"))
        if cls.options.get("backups"):
            history = with_backups(history, Random(~seed))
        if numbers := cls.options.get("reshard"):
            history = with_reshards(history, Random(~seed), numbers)
        return Case({topic: tuple(of_topic) for topic, of_topic in records.items()}, history)

    @classmethod
    def _play_case(cls, case: Case, mode: str) -> Simulation:
        options: dict[str, Any] = {"partitions": 2, **cls.options}
        kind = BackupSimulation if options.pop("backups", False) else cls.simulation
        kind = ReshardSimulation if options.pop("reshard", ()) else kind
        simulation = kind(
            cls.program(), case.records, case.history, mode=mode,
            deployments=[make() for make in cls.deployments], **options,
        )  # fmt: skip
        try:
            simulation.run()
            for whose, found in simulation.answers().items():
                expected = cls._expected(simulation, options, list(found))
                before = (difference_before_reset(expected, each, cls.compared) for each in simulation.lives)
                different = next(filter(None, before), None) or difference(expected, found, cls.compared)
                if different is not None:
                    raise simulation.failure(f"{whose}{different}")
            return simulation
        finally:
            simulation.close()

    @classmethod
    def _expected(cls, simulation: Simulation, options: dict[str, Any], sinks: list[str]) -> Answers:
        records = simulation.arrived
        if cls.reference is None:
            own = ("hosts", "partitions", "changelog", "topics", "replicas", "standbys")
            given = {name: value for name, value in options.items() if name not in own}
            return of_driver(cls.program(), records, options["partitions"], **given)
        if len(records) != 1 or len(sinks) != 1:
            raise ConfigError(
                f"{cls.__name__}: `reference` is for a program that reads one topic and writes one, found "
                f"{sorted(records)} and {sinks}"
            )
        return {sinks[0]: of_reference(cls.reference, simulation.parts[next(iter(records))])}


@cache
def _only_source(contract: type[SimulationContract]) -> str:
    program = contract.program()
    application = program if isinstance(program, Application) else Application("simulated", program)
    names = [topic for topic in application.program.topics() if topic not in application.program.internal_topics]
    if len(names) != 1:
        raise ConfigError(f"records: the program reads {', '.join(sorted(names))}: return a mapping by topic")
    return names[0]


_IN_MEMORY = "/dev/shm"


@contextmanager
def in_memory() -> Iterator[None]:
    """Let temporary directories be made in memory, where the system has such a place."""
    before = tempfile.tempdir
    if os.access(_IN_MEMORY, os.W_OK):
        tempfile.tempdir = _IN_MEMORY
    try:
        yield
    finally:
        tempfile.tempdir = before


Answers = Mapping[str, Sequence[tuple[Any, ...]]]
"""By output topic: (key, value) or (key, value, timestamp), or all of a Record."""

_MANY = 1_000
"""Records between two commits: a history may have any number."""


def of_driver(program: Any, records: Mapping[str, Sequence[Record]], partitions: int, **settings: Any) -> Answers:
    """Return a program's answers without faults: those of the test driver, which has all records at once."""
    with TopologyTestDriver(program, partitions=partitions, commit_every=_MANY, **settings) as driver:
        driver.pipe_many(records)
        return {topic: [tuple(each) for each in driver.read_all(topic)] for topic in driver.output_topics()}


def of_reference(reference: Callable[[list[Record]], Iterable[Any]], parts: Iterable[Sequence[Record]]) -> list[Any]:
    """Return the answers of a function in plain Python for the records of each partition."""
    return [tuple(answer) for part in parts if part for answer in reference(list(part))]


def difference(expected: Answers, found: Mapping[str, Sequence[Record]], compared: str) -> str | None:
    """Return the first difference, by topic and key; None if there is none.

    `compared`: the answers of a key "in order", "in any order", or the "latest" of each key only; "at least once" where
    some come again; where records were deleted before they were read, "with gaps", or "any of them" where some come
    again, too. What an expected answer leaves out is not compared.
    """
    for place, answers, records in _by_topic_and_key(expected, found):
        length = max((len(answer) for answer in answers), default=2)
        got = [tuple(record[:length]) for record in records]
        if compared == "latest":
            got, answers = got[-1:], answers[-1:]
        if not _COMPARED.get(compared, list.__eq__)(answers, got):
            return f"{place}: expected {answers}, found {got}"
    return None


def difference_before_reset(expected: Answers, found: Mapping[str, Sequence[Record]], compared: str) -> str | None:
    """Return the first answer, by topic and key, that the program would not have given up to some record, as above."""
    for place, answers, records in _by_topic_and_key(expected, found):
        got = [tuple(record[: len(answers[0]) if answers else None]) for record in records]
        is_right = got == answers[: len(got)] if compared == "in order" else not Counter(got) - Counter(answers)
        if compared in ("in order", "in any order") and not is_right:
            return f"{place}, before a reset: expected the first of {answers}, found {got}"
    return None


def _are_among(some: list[Any], every: list[Any]) -> bool:
    """Return whether some answers are a subsequence of others."""
    left = iter(every)
    return all(each in left for each in some)


_COMPARED: Mapping[str, Callable[[list[Any], list[Any]], bool]] = {
    "in any order": lambda expected, found: Counter(map(repr, expected)) == Counter(map(repr, found)),
    "at least once": lambda expected, found: _are_among(expected, found) and all(each in expected for each in found),
    "with gaps": lambda expected, found: _are_among(found, expected),
    "any of them": lambda expected, found: all(each in expected for each in found),
}


def _by_topic_and_key(*each: Answers) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield each topic and key, with its answers in both."""
    places: dict[tuple[str, str], tuple[list[Any], list[Any]]] = {}
    for number, topics in enumerate(each):
        for topic, answers in topics.items():
            for answer in answers:
                places.setdefault((topic, repr(answer[0])), ([], []))[number].append(tuple(answer))
    for (topic, key), (expected, found) in sorted(places.items()):
        yield f"topic {topic!r}, key {key}", expected, found


@dataclass(frozen=True)
class Case:
    """Records of each source topic, and the history in which they arrive."""

    records: Mapping[str, tuple[Record, ...]]
    history: History

    def with_steps(self, begin: int, end: int, *steps: Step) -> Case:
        """Return this case with other steps in place of those from `begin` to `end`."""
        given = self.history.steps
        return replace(self, history=replace(self.history, steps=given[:begin] + steps + given[end:]))

    def without_record(self, topic: str, number: int) -> Case:
        """Return this case without one record of a topic."""
        records = self.records[topic]
        return replace(self, records={**self.records, topic: records[:number] + records[number + 1 :]})


def shrink(
    case: Case, failure: SimulationFailure, play: Callable[[Case], object], seconds: float = 50.0
) -> SimulationFailure:
    """Return the failure of the shortest case found within `seconds`. `play` raises for a case that fails."""
    until = perf_counter() + seconds
    before: Case | None = None

    def fails(other: Case) -> bool:
        """Take a case if it fails; return whether it does."""
        nonlocal case, failure
        if other == case or perf_counter() >= until:
            return False
        try:
            play(other)
        except SimulationFailure as error:
            case, failure = other, error
            return True
        return False

    while case != before and perf_counter() < until:
        before = case
        fails(replace(case, history=replace(case.history, rest_arrives=False)))
        fails(replace(case, history=replace(case.history, commit_interval=COMMIT_INTERVALS[0])))
        size = len(case.history.steps)
        while size:  # without many steps that follow each other, then without fewer, the last ones first
            for end in range(len(case.history.steps), 0, -size):
                fails(case.with_steps(max(0, end - size), end))
            size //= 2
        arriving = sum(step.kind == "arrive" for step in case.history.steps)
        for topic, records in case.records.items():
            fails(replace(case, records={**case.records, topic: records[:arriving]}))
        for topic, records in case.records.items():
            for number in reversed(range(len(records))):
                fails(case.without_record(topic, number))
        for number in range(len(case.history.steps)):
            while any(
                fails(case.with_steps(number, number + 1, each)) for each in case.history.steps[number].simpler()
            ):
                pass
    return failure


@dataclass
class Soaked:
    """What a soak ran: histories, events, how often each fault struck, and where. `failure` ended it, at `seed`."""

    histories: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    places: Counter[Place] = field(default_factory=Counter)
    seed: int = 0
    failure: SimulationFailure | None = None

    def add(self, other: Soaked) -> None:
        """Add the counts of another coverage."""
        self.histories += other.histories
        self.events += other.events
        self.faults.update(other.faults)
        self.places.update(other.places)
        self.seed, self.failure = other.seed, other.failure


def soak(
    contract: type[SimulationContract],
    seeds: Sequence[int],
    progress: Callable[[Soaked], None] = lambda soaked: None,
    *,
    jobs: int = 1,
) -> Soaked:
    """Run the history of each seed until one fails, in `jobs` processes. `progress` is called after each."""
    soaked = Soaked()
    for each in _played(contract, seeds) if jobs == 1 else _played_by(jobs, contract, seeds):
        soaked.add(each)
        if each.failure is not None:
            break
        progress(soaked)
    return soaked


def _played(contract: type[SimulationContract], seeds: Sequence[int]) -> Iterator[Soaked]:
    """Yield the result of each history; a failed one is the last."""
    with _quiet(), in_memory():
        for seed in seeds:
            try:
                simulation = contract.play(seed)
            except SimulationFailure as failure:
                shortest = contract.shortest(seed, failure) if contract.shrinks else failure
                yield Soaked(seed=seed, failure=shortest)
                return
            yield Soaked(1, simulation.events, Counter(simulation.faults), Counter(simulation.places), seed)


def _played_by(jobs: int, contract: type[SimulationContract], seeds: Sequence[int]) -> Iterator[Soaked]:
    """Do as `_played`, with processes that share the seeds."""
    context = get_context("fork")  # the contract may be of a file, and the product changed by a planted fault
    results: Any = context.SimpleQueue()

    def work(number: int) -> None:
        # Neighbours go to one process, so that each has both modes.
        for each in _played(contract, [seed for at, seed in enumerate(seeds) if at // 2 % jobs == number]):
            results.put(each)
        results.put(None)

    processes = [context.Process(target=work, args=(number,), daemon=True) for number in range(jobs)]
    for each in processes:
        each.start()
    try:
        at_work = jobs
        while at_work:
            found = results.get()
            if found is None:
                at_work -= 1
            else:
                yield found
    finally:
        for each in processes:
            each.terminate()
            each.join()


@contextmanager
def _quiet() -> Iterator[None]:
    """Write no log lines: hosts that die and wake warn of each other."""
    logger = logging.getLogger("penstock")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
