"""What Kafka Streams and penstock make of the same programs, and which differences docs/conformance.md lists.

A difference counts as listed only where a second run proves it: with just what is listed taken away on one side, both
sides agree entirely.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any
from unittest.mock import patch

from penstock import ProcessorContext, Record
from penstock.operator import Run
from penstock.plugins.dsl import JoinWindows, SessionWindows, SlidingWindows, StreamsBuilder
from penstock.plugins.dsl.graph.step import Step
from penstock.plugins.dsl.operators import table_join
from penstock.plugins.dsl.operators.foreign_key import ForeignKeyResolve
from penstock.plugins.dsl.operators.foreign_key_messages import compile_hash
from penstock.plugins.dsl.operators.reading import TableSource
from penstock.plugins.dsl.operators.user_step import UserStep
from penstock.plugins.testing import TopologyTestDriver
from penstock.plugins.testing.driver import Waiting
from penstock.program.nodes import SinkNode, SourceNode, TaskId, decorate
from penstock.program.program import Program
from penstock.record import TopicPartition

from .differences import KEPT_LONGER_MS, DeletedSelfJoins, KeptRows, OptimisedSelfJoins, RowsSentBefore
from .recording import recorded
from .runner import BUILDERS, Case, TestDriver, application_of, check, check_description

Answer = dict[str, Any]


@dataclass(frozen=True)
class Compared:
    """A case that differs. `listed`: why it may; empty if nothing explains it."""

    name: str
    difference: str
    listed: tuple[str, ...] = ()


REFUSED = "programs with several groupings behind one verb, which Kafka Streams refuses with merged repartition topics"
BEHIND_PROCESS = (
    "merged repartition topics behind `process` and `process_values`, which Kafka Streams puts in front of them"
)
SEGMENTS = "counts of what has expired, which Kafka Streams' stores in RocksDB keep for longer than those in memory"
ORDER = "the order of records that wait with equal timestamps, which Kafka Streams' driver processes in one task"
EARLIEST_PAIRS = "records at the earliest end of a window with one side, or of one ms, which Kafka Streams' stores drop"
STALE_ANSWERS = "results of an inner join by foreign key that stale answers delete; Kafka Streams drops those answers"


class InOneTask(TopologyTestDriver):
    """Processes the records that wait in the order of Kafka Streams' driver, whose one task runs all sub-topologies.

    That is the lowest timestamp first, and partitions of equal timestamps as a `java.util.PriorityQueue` has them.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._heap: list[TopicPartition] = []
        self._times: dict[TopicPartition, int] = {}
        self._last: TopicPartition | None = None
        self._has_more = False
        super().__init__(*args, **options)

    def _choose(self, heads: Mapping[TaskId, Waiting]) -> tuple[TaskId, dict[TopicPartition, int]]:
        waiting = {partition: (task, *some[0]) for task, found in heads.items() for partition, some in found.items()}
        self._times = {partition: time for partition, (_, time, _) in waiting.items()}
        last = self._last
        if last is not None and self._has_more:
            self._offer(last)
        made = [each for each in waiting if each not in self._heap]
        order = [] if last is None else _topics_below(self.application.program, self.application.id, last.topic)
        for each in sorted(made, key=lambda each: order.index(each.topic) if each.topic in order else len(order)):
            self._offer(each)
        chosen = self._poll()
        task, _, end = waiting[chosen]
        self._last, self._has_more = chosen, self.log.end_offsets([chosen])[chosen] > end
        return task, {chosen: end}

    def _offer(self, partition: TopicPartition) -> None:
        self._heap.append(partition)
        at = len(self._heap) - 1
        while at and self._times[partition] < self._times[self._heap[(at - 1) // 2]]:
            self._heap[at], at = self._heap[(at - 1) // 2], (at - 1) // 2
        self._heap[at] = partition

    def _poll(self) -> TopicPartition:
        heap, times = self._heap, self._times
        first, moved, at = heap[0], heap.pop(), 0
        if heap:
            while children := heap[2 * at + 1 : 2 * at + 3]:
                below = 2 * at + 1 + (len(children) == 2 and times[children[0]] > times[children[1]])
                if times[moved] <= times[heap[below]]:
                    break
                heap[at], at = heap[below], below
            heap[at] = moved
        return first


def _topics_below(program: Program, application_id: str, topic: str) -> list[str]:
    """Return the topics that a record of a topic may reach, in the order in which it does: depth first."""
    found: list[str] = []

    def visit(name: str) -> None:
        node = program.nodes[name]
        if isinstance(node, SinkNode) and isinstance(node.topic, str):
            found.append(decorate(application_id, node.topic, program.internal_topics))
        for child, each in program.nodes.items():
            if not isinstance(each, SourceNode) and name in each.parents:
                visit(child)

    for name, node in program.nodes.items():
        topics = [decorate(application_id, each, program.internal_topics) for each in getattr(node, "topics", ())]
        if isinstance(node, SourceNode) and topic in topics:
            visit(name)
    return list(dict.fromkeys(found))


class TestDriverInOneTask(TestDriver):
    driver_type = InOneTask


def _dropping_stale_answers(bind: Callable[[ForeignKeyResolve, ProcessorContext], Run]) -> Any:
    """Return `ForeignKeyResolve.bind` that also drops the stale answers which delete a result here."""

    def bound(self: ForeignKeyResolve, context: ProcessorContext) -> Run:
        run, digest = bind(self, context), compile_hash(self.serdes.of_values(context))
        get, drop = self.left.open(context), context.metrics.drop

        def strict(record: Record) -> None:
            row = get(record[0])
            if digest(None if row is None else row[0]) == record[1][0]:
                run(record)
            else:
                drop("stale_response")

        return strict

    return bound


@dataclass(frozen=True)
class Excuse:
    """A listed difference of answers. It is gone where Kafka Streams runs with `config`, and penstock as in `here`."""

    reason: str
    applies_to: Callable[[Case], bool] = lambda case: True
    config: Mapping[str, Any] = field(default_factory=dict)
    here: str = ""


def _joins_itself(case: Case) -> bool:
    """Return whether Kafka Streams rewrites a join of the program, because both sides are one stream."""
    joins = [step for step in case["params"]["steps"] if step["op"] == "join" and "diff" in step]
    return bool(case["config"]["optimize"]) and any(step["of"][0] == step["of"][1] for step in joins)


def _processes(case: Case) -> bool:
    return bool(case["config"]["optimize"]) and any(
        step["op"] in ("process", "process_values") for step in case["params"]["steps"]
    )


def _joins_tables(case: Case) -> bool:
    return any(step["op"] == "join" and "diff" not in step and "fk" not in step for step in case["params"]["steps"])


def _nowhere(table: TableSource, step: Step) -> bool:
    return False


def _uses_rows_before(case: Case) -> bool:
    """Return whether old values of an aggregation may matter: it sends them to what is behind it."""
    ops = {step["op"] for step in case["params"]["steps"]}
    joins_tables = any(step["op"] == "join" and "diff" not in step for step in case["params"]["steps"])
    return bool(ops & {"aggregate", "cogroup"}) and ("group_table" in ops or "filter" in ops or joins_tables)


def _keeps_windows_longer(case: Case) -> bool:
    return any(step.get("window", {}).get("kind") in KEPT_LONGER_MS for step in case["params"]["steps"])


def _least_ms(windows: SessionWindows | SlidingWindows) -> int:
    return max(1, windows.retention_ms)


def _joins_at_one_time(case: Case) -> bool:
    return any(step.get("diff") == 0 for step in case["params"]["steps"])


def _retention_ms(windows: JoinWindows) -> int:
    return windows.retention_ms


def _joins_by_foreign_key(case: Case) -> bool:
    return any("fk" in step and step["type"] == "inner" for step in case["params"]["steps"])


EXCUSES = (
    Excuse(ORDER, here="in one task"),
    Excuse(STALE_ANSWERS, _joins_by_foreign_key, here="dropping stale answers"),
    Excuse(EARLIEST_PAIRS, _joins_at_one_time, here="keeping joined records as long"),
    Excuse(DeletedSelfJoins.reason, _joins_tables, here="reading new rows"),
    Excuse(RowsSentBefore.reason, _uses_rows_before, {"cache_max_bytes": 1_000_000}),
    Excuse(SEGMENTS, config={"store_type": "in_memory"}),
    Excuse(KeptRows.reason, _keeps_windows_longer, {"store_type": "in_memory"}, here="keeping windows as long"),
    Excuse(OptimisedSelfJoins.reason, _joins_itself, {"optimize": False}),
    Excuse(BEHIND_PROCESS, _processes, {"optimize": False}),
)


def compared(cases: list[Case]) -> list[Compared]:
    """Return each case in which Kafka Streams has other names or answers, or refuses the program."""
    found: list[Compared] = []
    open_cases: list[tuple[Case, Compared]] = []
    for case, answer in zip(cases, recorded(cases), strict=True):
        if "refused" in answer:
            listed: tuple[str, ...] = ()
            if case["config"]["optimize"] and "Found a null keyChangingChild" in answer["refused"]:
                application_of(case).program.describe()
                listed = (REFUSED,)
            found.append(Compared(case["name"], f"Kafka Streams: {answer['refused'][:200]}", listed))
            continue
        names, listed = _difference_of_names(case, answer)
        answers = _difference_of_answers(case, answer) if "inputs" in case else ""
        if names or answers:
            result = Compared(case["name"], f"{names or answers}\n    {json.dumps(case['params']['steps'])}", listed)
            if answers and (listed or not names):
                open_cases.append((case, result))
            else:
                found.append(result)
    ways = [(case, result, way) for case, result in open_cases for way in _ways(case)]
    explained: dict[str, tuple[str, ...]] = {}
    second = [{**case, "config": {**case["config"], **_config(way)}} for case, _, way in ways]
    for (case, _, way), answer in zip(ways, recorded(second) if second else [], strict=True):
        if "optimize" in _config(way):
            # Another program of Kafka Streams, which sends the same: with two stores it counts each drop twice.
            answer["expected"].pop("metrics", None)
        if case["name"] not in explained and not _difference_of_answers(case, answer, {each.here for each in way}):
            explained[case["name"]] = tuple(each.reason for each in way)
    for case, result in open_cases:
        reasons = explained.get(case["name"])
        listed = () if reasons is None else tuple(dict.fromkeys(result.listed + reasons))
        found.append(Compared(result.name, result.difference, listed))
    return found


def _ways(case: Case) -> Iterator[tuple[Excuse, ...]]:
    """Yield the excuses that may explain a case together, the fewest first."""
    fitting = [each for each in EXCUSES if each.applies_to(case)]
    for count in range(1, len(fitting) + 1):
        yield from combinations(fitting, count)


def _config(way: tuple[Excuse, ...]) -> dict[str, Any]:
    return {name: value for each in way for name, value in each.config.items()}


def _difference_of_names(case: Case, answer: Answer) -> tuple[str, tuple[str, ...]]:
    """Return the first difference, "" if there is none, and why it may be."""
    entry = {"case": case["name"], "topology": "steps", "params": case["params"], **answer, **case["config"]}
    names = check_description(entry).difference
    if not names or not _processes(case):
        return names, ()
    without = check_description(entry, build=with_harmless_processes).difference
    return names, () if without else (BEHIND_PROCESS,)


def with_harmless_processes(params: dict[str, Any]) -> StreamsBuilder:
    """Return the program, as if its processors changed neither keys nor values."""
    builder: StreamsBuilder = BUILDERS["steps"](params)

    def visit(step: Step) -> None:
        if isinstance(step, UserStep):
            step.changes_key = step.changes_value = False
        for child in step.children:
            visit(child)

    visit(builder._recorder.root)
    return builder


def _difference_of_answers(case: Case, answer: Answer, here: Collection[str] = ()) -> str:
    bind = ForeignKeyResolve.bind
    changed = _dropping_stale_answers(bind) if "dropping stale answers" in here else bind
    driver = TestDriverInOneTask if "in one task" in here else TestDriver
    with ExitStack() as changes:
        if "keeping windows as long" in here:
            for kind in (SessionWindows, SlidingWindows):
                changes.enter_context(patch.object(kind, "kept_ms", property(_least_ms)))
        if "keeping joined records as long" in here:
            changes.enter_context(patch.object(JoinWindows, "kept_ms", property(_retention_ms)))
        if "reading new rows" in here:
            changes.enter_context(patch.object(table_join, "_is_above", _nowhere))
        changes.enter_context(patch.object(ForeignKeyResolve, "bind", changed))
        return check({**case, "expected": answer["expected"]}, driver).difference
