"""SimulationContract: a program on hosts that crash, freeze and lose tasks answers as it does without faults."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any, ClassVar, Literal

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import Application, ConfigError, Record, Topology, TopologyBuilder

from .answers import Answers, difference, difference_before_reset, of_driver, of_reference
from .backups import BackupSimulation, with_backups
from .failure import SimulationFailure
from .history import History, with_copy_faults
from .reshards import ReshardSimulation, with_reshards
from .shrinking import Case, shrink
from .simulation import Simulation, is_on_disk
from .takeovers import with_takeovers

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
        """In batches, as micro-batches of Spark."""
        self._try("batches")

    def test_continuously(self) -> None:
        """In the continuous mode, in which commits and openings are in other threads."""
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
