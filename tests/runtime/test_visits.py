"""A visit goes on in portions between records, over openings: each key that stays is visited once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    Application,
    OutputBatch,
    Processor,
    Record,
    TaskId,
    TopicPartition,
    Topology,
    key_value_store,
    visitor,
)
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.program.visits import ask_for_visit, asked_visits, stop_visits, visit_statuses
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.task.visits import saved_visits

IN = TopicPartition("in", 0)


class Steps(Processor):
    """Keeps records; a visit has portions of one key, and where keys agree in all that is saved of them, of those."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_store("kept")

    def process(self, record: Record) -> None:
        self.store.put(record.key, record.value or None)

    @visitor()
    def step(self, key: str, value: str) -> None:
        self.context.forward(Record(key, value, 0))
        self.context.commit()

    @visitor()
    def count(self, key: str, value: str) -> None:
        self.context.commit()


class Bench:
    """One task, which is opened anew when a test says so."""

    def __init__(self, directory: Path) -> None:
        topology = (
            Topology().add_source("in", "in").add_processor("keep", Steps, "in", stores=[key_value_store("kept")])
        )
        topology.add_sink("out", "out", "keep")
        settings: dict[str, Any] = {"log": "memory:x", "changelog": "topic:", "store_backend": "memory"}
        self.log = MemoryLog()
        for topic in ("in", "out"):
            self.log.create_topic(topic, 1)
        given = Application("steps", topology, data_dir=str(directory), **settings)
        self.application = prepare(given, self.log).application
        self.resources = ProcessResources()
        self.worker = self._worker()

    def _worker(self) -> TaskWorker:
        return TaskWorker(self.application, TaskId(0, 0), [IN], self.log, resources=self.resources)

    def put(self, *keys: str, value: str = "v") -> None:
        raw: list[bytes | None] = [key.encode() for key in keys]
        self.log.append(OutputBatch("in", raw, [value.encode()] * len(keys), [1] * len(keys)))

    def batch(self) -> None:
        """Process what there is, and visit one portion."""
        self.worker.ask(asked_visits("steps", self.log))
        self.worker.try_batch(self.log.end_offsets([IN]), 1, visit_seconds=0.0)

    def reopen(self) -> None:
        self.worker.close()
        self.worker = self._worker()

    def ask(self, number: int, visitor: str = "step") -> None:
        ask_for_visit(self.application, self.log, visitor, number)
        self.batch()

    def unfinished(self) -> list[str]:
        """Return the visitors whose position the last commit has."""
        assert self.worker.commit is not None
        return [name for name, each in saved_visits(self.worker.commit.engine_state).items() if each.at is not None]

    @property
    def is_visiting(self) -> bool:
        return self.worker.task is not None and self.worker.task.visits.are_due

    def visited(self) -> list[str]:
        end = TopicPartition("out", 0)
        batches = self.log.fetch(end, 0, self.log.end_offsets([end])[end], 1 << 20)
        return [key.decode() for batch in batches for key in batch.keys if key is not None]

    def close(self) -> None:
        self.worker.close()
        self.resources.close()


_SIMILAR = st.text("ab", max_size=2).map(lambda text: "x" * 255 + text)
_KEYS = st.one_of(st.text(st.characters(codec="utf-8"), min_size=1, max_size=3), _SIMILAR)
_STEPS = st.tuples(st.sampled_from(["put", "delete", "reopen", "nothing"]), _KEYS)


@given(st.lists(_KEYS, unique=True, max_size=12), st.lists(_STEPS, max_size=12), st.integers(1, 2))
def test_each_key_is_visited_once_whatever_comes_between_portions(
    keys: list[str], steps: list[tuple[str, str]], visits: int
) -> None:
    with TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        bench.put(*keys)
        bench.batch()
        there, before = set(keys), 0
        for number in range(1, visits + 1):
            put, deleted = set[str](), set[str]()
            bench.ask(number)
            while bench.is_visiting:
                what, key = steps.pop() if steps else ("nothing", "")
                if what == "reopen":
                    bench.reopen()
                elif what != "nothing":
                    (put if what == "put" else deleted).add(key)
                    bench.put(key, value="v" if what == "put" else "")
                bench.batch()
            found = Counter(bench.visited()[before:])
            assert max(found.values(), default=1) == 1
            assert there - deleted <= set(found) <= there | put
            there, before = (there | put) - deleted, before + len(found)
            if deleted & put:
                break  # which came last is not kept here
        bench.close()


def test_a_commit_has_the_position_of_one_visit_alone(tmp_path: Path) -> None:
    """Also if the request to stop a visit went before the task was told of it; an old driver's list ends nothing."""
    bench = Bench(tmp_path)
    bench.put("a", "b", "c")
    bench.batch()
    bench.ask(1)
    known = asked_visits("steps", bench.log)
    assert bench.unfinished() == ["keep.step"]
    stop_visits(bench.application, bench.log, "step")
    bench.ask(2, "count")
    assert bench.unfinished() == ["keep.count"]
    bench.worker.ask(known)
    bench.worker.try_batch({}, 1, visit_seconds=0.0)
    assert bench.unfinished() == ["keep.count"] and not bench.is_visiting
    bench.batch()
    bench.batch()
    assert bench.unfinished() == [] and not bench.is_visiting
    bench.close()


def test_a_visit_that_is_stopped_ends_and_another_one_begins_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put("a", "b", "c")
    bench.batch()
    bench.ask(1)
    assert bench.is_visiting and bench.visited() == ["a"]
    assert stop_visits(bench.application, bench.log, "keep.step") == 1
    bench.batch()
    assert not bench.is_visiting
    assert stop_visits(bench.application, bench.log, "step") == 0
    bench.ask(2)
    while bench.is_visiting:
        bench.reopen()
        bench.batch()
    assert bench.visited() == ["a", "a", "b", "c"]
    [status] = visit_statuses(bench.application, bench.log)
    assert (status.is_over, status.tasks, status.done, status.visited) == (True, 1, 1, 3)
    bench.close()
