"""Programs of the DSL: the Task alone, in one process, beside hand-written processors where there are such."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from penstock import Application, TaskId, Topology
from penstock.plugins.engine.task.process_resources import tune_garbage_collector
from penstock.record import OutputBatch, RecordBatch, TopicPartition
from penstock.settings.application import TopologyBuilder

from .data import spread_times, zipf_keys
from .dsl_programs import dsl_program
from .kafka_app import topology
from .programs import session_count_topology
from .result import Table
from .task_stores import task_with_memory_stores

RECORDS = 500_000
KEYS = 20_000
BATCH = 5_000
COMMIT = 100_000
CACHE_BYTES = 10 * 1024 * 1024
"""The record cache's default."""
SPAN_MS, LATE_MS = 240_000, 10_000
IN, OTHER, OUT = "bench-in", "bench-other", "bench-out"

Program = Topology | TopologyBuilder
Inputs = Iterator[list[OutputBatch]]
"""What a program gets, as another one would have written it; after each list a task processes it."""


def lines() -> Inputs:
    """Yield lines of ten words."""
    words, times = zipf_keys(RECORDS, KEYS), spread_times(RECORDS // 10, SPAN_MS, LATE_MS)
    values: list[bytes | None] = [b" ".join(words[at : at + 10]) for at in range(0, RECORDS, 10)]
    yield from _batches(IN, [None] * len(values), values, times)


def events() -> Inputs:
    """Yield records of keys by Zipf's law."""
    times = spread_times(RECORDS, SPAN_MS, LATE_MS)
    yield from _batches(IN, list(zipf_keys(RECORDS, KEYS)), [b"x" * 91] * RECORDS, times)


def users_and_events() -> Inputs:
    """Yield a table of all keys, then the records of a stream."""
    users = sorted(set(zipf_keys(RECORDS, KEYS)))
    yield from _batches(OTHER, list(users), [b"of region 7"] * len(users), [0] * len(users))
    yield from events()


def two_streams() -> Inputs:
    """Yield two streams of evenly distributed keys; two of three records meet one of the other side."""
    half = RECORDS // 2
    values: list[bytes | None] = [b"v%d" % number for number in range(half)]
    sides = []
    for seed, topic in ((11, IN), (12, OTHER)):
        keys: list[bytes | None] = [
            b"u%08d" % key for key in np.random.default_rng(seed).integers(0, KEYS, half).tolist()
        ]
        sides.append(_batches(topic, keys, values, spread_times(half, SPAN_MS, LATE_MS, seed=seed)))
    for left, right in zip(*sides, strict=True):
        yield left + right


def _batches(topic: str, keys: list[bytes | None], values: list[bytes | None], times: list[int]) -> Inputs:
    for at in range(0, len(keys), BATCH):
        end = at + BATCH
        yield [OutputBatch(topic, keys[at:end], values[at:end], times[at:end])]


CASES: dict[str, tuple[Callable[[], Program], Callable[[], Inputs]]] = {
    "word-count": (lambda: topology("dsl-word-count", IN, OUT), lines),
    "word-count-by-hand": (lambda: topology("word-count", IN, OUT), lines),
    "windowed-count": (lambda: topology("dsl-windowed-count", IN, OUT), events),
    "windowed-count-by-hand": (lambda: topology("windowed-count", IN, OUT), events),
    "session-count": (lambda: dsl_program("dsl-session-count", IN, OUT, OTHER), events),
    "session-count-by-hand": (session_count_topology, events),
    "word-count-cached": (lambda: topology("dsl-word-count", IN, OUT), lines),
    "windowed-count-cached": (lambda: topology("dsl-windowed-count", IN, OUT), events),
    "stream-table-join": (lambda: topology("stream-table-join", IN, OUT), users_and_events),
    "stream-stream-join": (lambda: topology("stream-stream-join", IN, OUT), two_streams),
}


def dsl_costs(rounds: int = 3, cases: Sequence[str] = tuple(CASES)) -> Table:
    """Programs of the DSL and hand-written ones, all by turns: microseconds of CPU a record, of words in word counts.

    Each is the median of the rounds: of processing with serdes, of flushing the stores in commits, and of both.
    """
    tune_garbage_collector()
    costs: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            program, inputs = CASES[case]
            cache_bytes = CACHE_BYTES if case.endswith("-cached") else 0
            costs[case].append(_run(program(), list(inputs()), cache_bytes))
    rows = []
    for case, found in costs.items():
        process, commit = (statistics.median(each) for each in zip(*found, strict=True))
        rows.append({"program": case, "process_us": round(process, 3), "commit_us": round(commit, 3)})
    return Table("dsl-costs", rows)


def _run(program: Program, inputs: Sequence[list[OutputBatch]], cache_bytes: int) -> tuple[float, float]:
    """Return the CPU time of a record, in microseconds: to process it, and to commit it."""
    application = Application("bench", program, store_backend="memory", statestore_cache_max_bytes=cache_bytes)
    tasks = [_Running(application, number) for number in range(len(application.program.subtopologies))]
    uncommitted = 0
    for batches in inputs:
        for task in tasks:  # what one writes to a repartition topic the next one reads
            batches = task.process(batches)
        uncommitted += BATCH
        if uncommitted >= COMMIT / (10 if len(tasks) > 1 else 1):
            uncommitted = 0
            for task in tasks:
                task.commit()
    return sum(task.process_s for task in tasks) / RECORDS * 1e6, sum(task.commit_s for task in tasks) / RECORDS * 1e6


class _Running:
    """A task with its stores, and the CPU time that it took."""

    def __init__(self, application: Application, number: int) -> None:
        sources = application.program.subtopologies[number].sources
        inputs = [(TopicPartition(topic, 0), source) for source in sources for topic in source.topics]
        self._task, self._state = task_with_memory_stores(application, TaskId(number, 0), inputs)
        self._ends: dict[TopicPartition, int | None] = {partition: 0 for partition, _ in inputs}
        self.process_s = self.commit_s = 0.0

    def process(self, batches: Sequence[OutputBatch]) -> list[OutputBatch]:
        """Process batches, and return what comes out."""
        for each in batches:
            partition = TopicPartition(each.topic, 0)
            first = self._ends[partition] or 0
            end = self._ends[partition] = first + len(each)
            self._task.feed(
                RecordBatch(each.topic, 0, range(first, end), each.keys, each.values, each.timestamps, None, end)
            )
        self._task.plan(self._ends, 0)
        began = time.process_time()
        self._task.process(RECORDS)
        made = self._task.take_outputs()
        self.process_s += time.process_time() - began
        return made

    def commit(self) -> None:
        """Commit."""
        began = time.process_time()
        self._task.take_commit()
        self._state.commit()
        self.commit_s += time.process_time() - began
