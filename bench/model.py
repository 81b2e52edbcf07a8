"""A model of scikit-learn on one record at a time, and on batches: the Task alone, in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock import Application, BatchProcessor, Processor, Record, TaskId
from penstock.dsl import StreamsBuilder
from penstock.plugins.engine.task.process_resources import tune_garbage_collector
from penstock.record import RecordBatch, TopicPartition

from .result import Table
from .task_stores import task_with_memory_stores

IN, OUT = "bench-in", "bench-out"
RECORDS = {True: 40_000, False: 2_000}
"""How many records are scored in batches, and one at a time."""
COMMIT = 2_000
ROW = np.random.default_rng(1).normal(size=30).astype("<f8").tobytes()


def model() -> Table:
    """A logistic regression of 30 numbers, one record at a time and in batches of 256: microseconds of CPU a record."""
    tune_garbage_collector()
    rows: list[dict[str, Any]] = []
    for name, (is_batch, program) in CASES.items():
        us = statistics.median(_cpu_us(program(), RECORDS[is_batch]) for _ in range(3))
        rows.append({"program": name, "us": round(us, 2), "records_per_s": round(1e6 / us)})
    pairs = {"map_values_batch": "map_values", "BatchProcessor": "Processor"}
    us_of = {row["program"]: row["us"] for row in rows}
    for row in rows:
        one = pairs.get(row["program"], row["program"])
        row["times_the_rate_of_one"] = round(us_of[one] / row["us"], 1)
    return Table("model", rows)


def _scores(rows: Any) -> Any:
    return _model().predict_proba(rows)[:, 1]


def _scores_of_bytes(values: Sequence[bytes]) -> list[float]:
    scores: list[float] = _scores(np.frombuffer(b"".join(values), "<f8").reshape(len(values), -1)).tolist()
    return scores


class _One(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(_scores_of_bytes([record.value])[0]))


class _Batch(BatchProcessor):
    def process_batch(self, records: Sequence[Record]) -> None:
        scores = _scores_of_bytes([record.value for record in records])
        for record, score in zip(records, scores, strict=True):
            self.context.forward(record.with_value(score))


def _program(step: Callable[[Any], Any]) -> Callable[[], StreamsBuilder]:
    def program() -> StreamsBuilder:
        builder = StreamsBuilder()
        step(builder.stream(IN, value_serde="bytes")).to(OUT, value_serde="float")
        return builder

    return program


CASES: dict[str, tuple[bool, Callable[[], StreamsBuilder]]] = {
    "map_values": (False, _program(lambda stream: stream.map_values(lambda value: _scores_of_bytes([value])[0]))),
    "Processor": (False, _program(lambda stream: stream.process(_One))),
    "map_values_batch": (True, _program(lambda stream: stream.map_values_batch(_scores_of_bytes))),
    "BatchProcessor": (True, _program(lambda stream: stream.process(_Batch))),
}
_trained: list[Any] = []


def _model() -> Any:
    """Return the model, which is trained at the first call."""
    if not _trained:
        from sklearn.datasets import load_breast_cancer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        rows, is_benign = load_breast_cancer(return_X_y=True)
        _trained.append(make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, is_benign))
    return _trained[0]


def _cpu_us(program: StreamsBuilder, records: int) -> float:
    _model()
    application = Application("bench", program, store_backend="memory")
    source = application.program.subtopologies[0].sources[0]
    task, state = task_with_memory_stores(application, TaskId(0, 0), [(TopicPartition(IN, 0), source)])
    began = time.process_time()
    for first in range(0, records, COMMIT):
        offsets = range(first, first + COMMIT)
        task.feed(RecordBatch(IN, 0, offsets, [b"k"] * COMMIT, [ROW] * COMMIT, list(offsets), None, first + COMMIT))
        task.process(COMMIT)
        task.take_commit()
    cpu = time.process_time() - began
    task.close()
    state.close()
    return cpu / records * 1e6
