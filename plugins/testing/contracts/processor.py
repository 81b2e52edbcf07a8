"""The tests that every stream program should pass; subclass `ProcessorContract` to run them over yours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import Application, ConfigError, Record, SinkNode, Topology, TopologyBuilder

from ..driver import TopologyTestDriver
from ..strategies import streams

_MOST_PARTITIONS, _MOST_TOGETHER = 3, 8


class ProcessorContract:
    """A program compared with a function in plain Python that says what it answers; run it in a test class of yours.

    >>> from penstock import Topology, ValueTransformer
    >>> class Double(ValueTransformer):
    ...     def transform(self, key, value):
    ...         return 2 * value
    >>> def doubling():
    ...     topology = Topology().add_source("in", "numbers", value_serde="int").add_processor("double", Double, "in")
    ...     return topology.add_sink("out", "doubled", "double", value_serde="int")
    >>> class TestDouble(ProcessorContract):
    ...     program = staticmethod(doubling)
    ...     reference = staticmethod(lambda records: [(key, 2 * value) for key, value, *_ in records])

    The answers have to be the same with any number of partitions, when tasks are re-opened after each commit or moved
    in the middle, and however many records a task processes between two commits. State in an attribute, a class or a
    global of a module shows in one of these, and so does whatever depends on where a batch ends.

    Needs pytest and hypothesis (`pip install 'penstock[testing]'`).
    """

    program: Callable[[], Topology | TopologyBuilder | Application]
    """Makes the program, as a `staticmethod`; it reads one topic and writes one."""
    reference: Callable[[list[Record]], Iterable[Any]]
    """Returns the outputs for the records of one partition, in their order, as a `staticmethod`: each a Record, a tuple
    (key, value) or a tuple (key, value, timestamp). What a tuple leaves out is not compared."""
    records: ClassVar[st.SearchStrategy[list[Record]]] = streams()
    """The records of the input topic."""
    by_partition: ClassVar[bool] = True
    """Whether a partition's answers depend on its own records only. Say False for a program with a repartition topic:
    `reference` then gets all records, and answers of different keys must not depend on each other."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Settings of the application."""

    examples: ClassVar[int] = 40
    """How many streams each test tries."""
    shrinks: ClassVar[bool] = True
    """Whether the smallest stream that fails is looked for."""

    def test_it_answers_as_the_reference(self) -> None:
        """In one partition, with a commit after each record."""
        self._try(lambda data: self._check(data.draw(self.records)))

    def test_any_number_of_partitions(self) -> None:
        """Records of one key are in one partition; each partition has a task with state of its own."""
        partitions = st.integers(2, _MOST_PARTITIONS)
        self._try(lambda data: self._check(data.draw(self.records), partitions=data.draw(partitions)))

    def test_tasks_are_reopened(self) -> None:
        """After each commit, as Spark may do: all state has to be in stores."""
        self._try(lambda data: self._check(data.draw(self.records), reopen_tasks=True))

    def test_any_batches(self) -> None:
        """Where a batch ends must not show, with caches and buffers that are written at a commit included."""

        def check(data: st.DataObject) -> None:
            records = data.draw(self.records)
            partitions, commit_every = data.draw(st.integers(1, 2)), data.draw(st.integers(2, _MOST_TOGETHER))
            self._check(records, data.draw(_cuts(records)), partitions=partitions, commit_every=commit_every)

        self._try(check)

    def test_tasks_move(self) -> None:
        """Between some batches, as in a rebalance."""

        def check(data: st.DataObject) -> None:
            records = data.draw(self.records)
            commit_every, sent = data.draw(st.integers(1, _MOST_TOGETHER)), data.draw(_cuts(records))
            moves = data.draw(st.sets(st.integers(0, max(0, len(sent) - 1))))
            self._check(records, sent, moves, partitions=2, commit_every=commit_every)

        self._try(check)

    # ------------------------------------------------------------------ helpers

    def _try(self, check: Callable[[st.DataObject], None]) -> None:
        """Call `check` with drawn examples."""
        phases = set(Phase) - ({Phase.explain} if self.shrinks else {Phase.shrink, Phase.explain})
        settings(
            max_examples=self.examples, phases=phases, deadline=None, suppress_health_check=[HealthCheck.too_slow],
            database=None, print_blob=False,
        )(given(st.data())(check))()  # fmt: skip

    def _check(
        self,
        records: list[Record],
        sent: Sequence[list[Record]] | None = None,
        moves: Iterable[int] = (),
        *,
        partitions: int = 1,
        **options: Any,
    ) -> None:
        with TopologyTestDriver(type(self).program(), partitions=partitions, **options, **self.options) as driver:
            source, sink = _ends(driver.application)
            for number, batch in enumerate([[each] for each in records] if sent is None else sent):
                if number in moves:
                    driver.reopen()
                driver.pipe_many(source, batch)
            found = driver.read_all(sink)
            parts = driver.sent(source) if self.by_partition else [records]
        expected = [list(type(self).reference(part)) for part in parts if part]
        how = {"partitions": partitions, **options}
        if sent is not None:
            how |= {"sent together": list(map(len, sent)), "moved before": sorted(moves)}
        _compare(expected, found, f"{', '.join(f'{name} {value}' for name, value in how.items())}; records {records}")


def _ends(application: Application) -> tuple[str, str]:
    """Return the topic that a program reads and the one that it writes."""
    program = application.program
    sources = [topic for topic in program.topics() if topic not in program.internal_topics]
    sinks = {
        node.topic
        for node in program.nodes.values()
        if isinstance(node, SinkNode) and isinstance(node.topic, str) and node.topic not in program.internal_topics
    }
    if len(sources) != 1 or len(sinks) != 1:
        raise ConfigError(
            f"ProcessorContract: the program reads one topic and writes one, found {sorted(sources)} and "
            f"{sorted(sinks)}: test its parts by themselves, or use TopologyTestDriver"
        )
    return sources[0], sinks.pop()


def _cuts(records: list[Record]) -> st.SearchStrategy[list[list[Record]]]:
    """Return a strategy of records in batches."""
    places = st.sets(st.integers(1, max(1, len(records) - 1))).map(sorted)
    return places.map(
        lambda cuts: [records[start:end] for start, end in zip([0, *cuts], [*cuts, len(records)], strict=True)]
    )


def _compare(expected: Sequence[Sequence[Any]], found: Sequence[Record], how: str) -> None:
    """Compare the answers of each key: in order if one partition gives them, else how many there are of each."""
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
        is_one = len({partition for partition, _ in of_key}) < 2
        same = given == answers if is_one else Counter(map(repr, given)) == Counter(map(repr, answers))
        assert same, f"key {key}: the program answered {given}, the reference {answers}; with {how}"
