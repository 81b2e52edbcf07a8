"""Compiling: turns each node into a function that holds its children, so that `forward` calls a child directly.

Comes in: a record for a source's child. Goes out: calls of processors, and records in the task's outputs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from traceback import walk_tb
from types import FunctionType
from typing import Any

from ..compiled import records as compiled
from ..errors import TopologyError
from ..operator import Operator
from ..processor import AsyncProcessor, BatchProcessor, NodeMetrics, Processor, ValueTransformer
from ..program.external_sink import ExternalSink
from ..program.nodes import Node, ProcessorNode, SinkNode, SourceNode, Subtopology
from ..program.wrapping import innermost
from ..record import Record, as_record
from ..support.callbacks import watched
from ..support.own_copy import IMMUTABLE, own_record
from .async_context import AsyncContext
from .batch_context import BatchContext
from .context import NodeContext, Shared, TransformerContext
from .failures import RECORD_ERRORS, SKIPPED, Failures, no_child
from .input_queue import InputQueue
from .making import bind_processor, init_processor, make_processor
from .outputs import Outputs
from .schedules import Schedules
from .visits import Visits

_log = logging.getLogger("penstock.task")
_record = tuple.__new__

Run = Callable[[Record], Any]
"""The function that processes a record at a node."""
EdgeCounts = Callable[[], Sequence[int]]
"""Returns the number of records that a node has forwarded: to all children, and, if there are several, to each alone.
"""


class Nodes:
    """The nodes of one task: their functions, processors and contexts, and the counts of records between them."""

    def __init__(
        self,
        subtopology: Subtopology,
        shared: Shared,
        outputs: Outputs,
        failures: Failures,
        metrics: Mapping[str, NodeMetrics],
    ) -> None:
        self._subtopology = subtopology
        self._shared = shared
        self._outputs = outputs
        self._failures = failures
        self._metrics = metrics
        self._nodes = {node.name: node for node in subtopology.nodes}
        self._contexts: dict[str, TransformerContext] = {}
        self._processors: dict[str, Processor | ValueTransformer] = {}
        # By parent: its counts, and its children.
        self._edges: dict[str, tuple[EdgeCounts, tuple[str, ...]]] = {}
        self._runs: dict[str, Run] = {}
        self._calls: dict[str, str] = {}  # by parent: the only child, if it is called without an edge
        self._ordered: set[tuple[str, str]] = set()
        self._known: set[str] = set()  # parents whose counts do not follow from how many records they get
        self._parents = Counter(child for each in subtopology.children.values() for child in each)
        self._received = dict.fromkeys(self._nodes, 0)
        self._behind_holders: list[NodeContext] = []
        self._is_closed = False
        failures.find_failed = self._find_failed

    # ------------------------------------------------------------------ building

    def compile(self, queues: list[InputQueue], visits: Visits, sinks: Mapping[str, Run] | None = None) -> None:
        """Make every processor and every node's function, children first, and give each queue the function to call.

        `visits` gets the visitors. `sinks`: the functions of external sinks, by node.
        """
        runs = self._runs
        for node in reversed(self._subtopology.nodes):
            if isinstance(node, ProcessorNode):
                made = make_processor(node, self._shared.settings.processor_wrapper)
                self._processors[node.name] = made
                if sinks and isinstance(inner := innermost(made), ExternalSink):
                    inner.collect = sinks.get(node.name)
        self._ordered = self._edges_in_order()
        self._order_results()
        for node in reversed(self._subtopology.nodes):
            below = self._subtopology.children.get(node.name, ())
            children = [(child, self._run_of(node.name, child)) for child in below]
            runs[node.name] = self._compile_node(node, children)
            if isinstance(node, ProcessorNode):
                visits.add(node, self._processors[node.name], self._shared.stores)
        self._show_what_is_held_back()
        counts: dict[str, list[int]] = {}
        for queue in queues:
            source = queue.source.name
            below = self._subtopology.children.get(source, ())
            queue.child = below[0] if len(below) == 1 else source
            queue.run = self._run_of(source, queue.child) if len(below) == 1 else runs[source]
            if len(below) == 1:
                # The loop over records calls the child directly, and counts for the source afterwards.
                queue.counts = counts.setdefault(source, queue.counts)
                self._edges[source] = partial(tuple, queue.counts), below
            queue.makes_tuples = all(map(self._takes_tuples, below))

    def init(self, schedules: Schedules) -> None:
        """Call `init` of every processor, parents first."""
        for node in self._subtopology.nodes:
            if isinstance(node, ProcessorNode):
                processor = self._processors[node.name]
                schedules.begin(node.name, processor)
                where = f"node {node.name!r} in task {self._shared.task_id}"
                init_processor(where, processor, self._contexts[node.name], self._edges[node.name][0])
                schedules.end(node.name)
        schedules.end_all()

    def _compile_node(self, node: Node, children: list[tuple[str, Run]]) -> Run:
        if isinstance(node, SinkNode):
            metadata = self._shared.progress.record_metadata
            return self._outputs.compile_sink(node, self._failures.production, metadata)
        if isinstance(node, SourceNode):
            return self._compile_edges(node.name, children)
        processor = self._processors[node.name]
        forward = self._compile_edges(node.name, children)
        send = forward if all(self._takes_tuples(name) for name, _ in children) else _sending_records(forward)
        return self._compile_processor(node, processor, forward, send)

    def _run_of(self, parent: str, child: str) -> Run:
        """Return the function of a child, compiled before, for the records of a parent."""
        run = self._runs[child]
        return self._shared.batches.run_after(run) if (parent, child) in self._ordered else run

    def _edges_in_order(self) -> set[tuple[str, str]]:
        """Return the edges whose records must not overtake those that wait in a batch: see `Operator.holds_records`."""
        children, ordered = self._subtopology.children, set[tuple[str, str]]()
        edges = [(parent, child) for parent, below in children.items() for child in below]
        for holder, processor in self._processors.items():
            supplier = getattr(self._nodes[holder], "supplier", None)
            if not any(getattr(each, "holds_records", False) for each in (innermost(processor), supplier)):
                continue
            behind = {holder, *self._behind(holder)}
            stores = {store for name in behind for store in self._stores_of(name)}
            sharing = {name for name in self._nodes if stores & set(self._stores_of(name))}
            written = {topic for name in behind for topic in self._topics_of(name)}
            sharing.update(
                name
                for name in self._nodes
                for topic in self._topics_of(name)
                if written and (topic in written or None in (topic, *written))
            )
            self._shared.batches.ordered.update(behind | sharing)
            ordered.update(
                (parent, child)
                for parent, child in edges
                if parent not in behind and child != holder and child in behind | sharing
            )
        return ordered

    def _order_results(self) -> None:
        """Tell the records in flight which nodes are behind them, and which results keep their order."""
        in_flight, all_behind = self._shared.in_flight, set[str]()
        for holder in self._processors:
            if not self._answers_later(holder):
                continue
            behind = self._behind(holder)
            if any(map(self._reads_time, behind)):
                in_flight.keep_order(holder)
            all_behind |= behind
            if isinstance(innermost(self._processors[holder]), AsyncProcessor):
                all_behind.add(holder)  # its own timers and punctuators, which see what results have left
        in_flight.behind = all_behind

    def _show_what_is_held_back(self) -> None:
        """Let nodes count the records of those in front of them that hold back results."""
        in_front: dict[str, list[str]] = {}
        for holder, processor in self._processors.items():
            if getattr(innermost(processor), "holds_back", False):
                for name in self._behind(holder):
                    in_front.setdefault(name, []).append(holder)
        for name, holders in in_front.items():
            if isinstance(context := self._contexts.get(name), NodeContext):
                context.count_held_back = partial(self._count_received, holders)
                self._behind_holders.append(context)

    def note_held_back(self) -> None:
        """Save, before a commit, what the nodes that wait for silence have to know of those in front of them."""
        for context in self._behind_holders:
            if context.waits_for_silence:
                context.note_held_back()

    def _count_received(self, names: Sequence[str]) -> int:
        self.count()
        return sum(self._metrics[name].records_in for name in names)

    def _answers_later(self, name: str) -> bool:
        kinds = (innermost(self._processors[name]), getattr(self._nodes[name], "supplier", None))
        return any(getattr(each, "answers_later", False) for each in kinds)

    def _behind(self, holder: str) -> set[str]:
        """Return the nodes that records of a node reach."""
        children, behind = self._subtopology.children, {holder}
        for node in self._subtopology.nodes:  # parents first
            if node.name in behind:
                behind.update(children.get(node.name, ()))
        return behind - {holder}

    def _reads_time(self, name: str) -> bool:
        processor = self._processors.get(name)
        return processor is not None and not (isinstance(processor, Operator) and not processor.reads_time)

    def _stores_of(self, name: str) -> Sequence[str]:
        node = self._nodes[name]
        return node.stores if isinstance(node, ProcessorNode) else ()

    def _topics_of(self, name: str) -> Sequence[str | None]:
        """Return the topic that a sink writes; None: a function chooses it."""
        node = self._nodes[name]
        if not isinstance(node, SinkNode):
            return ()
        return (self._outputs.topic_name(node.topic) if isinstance(node.topic, str) else None,)

    def _takes_tuples(self, name: str) -> bool:
        """Return whether a node accepts plain tuples; its processor has been made."""
        if isinstance(self._nodes[name], SinkNode):
            return self._is_plain_sink(name)
        processor = self._processors[name]
        return isinstance(processor, ValueTransformer) or processor.takes_tuples

    def _compile_processor(
        self,
        node: ProcessorNode,
        processor: Processor | ValueTransformer,
        forward: Callable[..., None],
        send: Callable[..., None],
    ) -> Run:
        metrics = self._metrics[node.name]
        if isinstance(processor, ValueTransformer):
            self._contexts[node.name] = TransformerContext(self._shared, node, metrics)
            transform = processor.transform

            def run(record: Record) -> None:
                forward(_record(Record, (record[0], transform(record[0], record[1]), record[2], record[3])))

            return run if compiled is None else compiled.transformer(run, transform, forward, Record)
        kind = innermost(processor)
        context_class = BatchContext if isinstance(kind, BatchProcessor) else NodeContext
        if isinstance(kind, AsyncProcessor):
            context_class = AsyncContext
        context = self._contexts[node.name] = context_class(self._shared, node, metrics, forward, send)
        self._shared.timers.add(node.name, self._shared.stores, processor.on_timer, node.advice.timers)
        process = bind_processor(f"node {node.name!r} in task {self._shared.task_id}", processor, context)
        if not processor.takes_tuples:
            process = watched(process)
        return self._noting_record(process) if self._has_record_cache(node) else process

    def _has_record_cache(self, node: Node) -> bool:
        stores = node.stores if isinstance(node, ProcessorNode) else ()
        return any(self._shared.stores[store].record_cache is not None for store in stores)

    def _noting_record(self, process: Run) -> Run:
        """Return `process` of a node with a record cache: updates are forwarded as of the current record."""
        progress = self._shared.progress

        def run(record: Record) -> None:
            before, progress.record = progress.record, record
            try:
                process(record)
            finally:
                progress.record = before

        return run if compiled is None else compiled.noting(run, process, progress)

    def _compile_edges(self, name: str, children: list[tuple[str, Run]]) -> Callable[..., None]:
        """Return forward(record, to=None) of a node, and keep its counts.

        No two places have one value that can be changed: of several children each gets its own, and a processor of the
        user's, which may use what it has forwarded, keeps its own. An operator hands a value over.

        A count for each record costs as much as a tenth of a simple node, so there is none where another one says it:
        a child that forwards each record has got as many as it has forwarded, and the other way round.
        """
        is_single = len(children) == 1 and (name, children[0][0]) not in self._ordered
        only = self._nodes[children[0][0]] if is_single else None
        is_known, keeps = True, self._keeps_values(name)
        if isinstance(only, SinkNode) and isinstance(only.topic, str) and self._is_plain_sink(only.name):
            is_alone = self._is_alone(only.topic)
            forward, counts = self._outputs.compile_only_child(only, self._failures.production, is_alone=is_alone)
        elif only is not None and self._says_what_it_got(only.name):
            forward = self._compile_uncounted(name, *children[0], keeps=keeps)
            forwarded, child = self._edges[only.name][0], only.name
            counts = lambda: (sum(forwarded()) + self._lost(child),)  # noqa: E731
        elif only is not None and self._forwards_each(name):
            forward, is_known = self._compile_uncounted(name, *children[0], keeps=keeps), False
            counts = lambda: (self._received[name] - self._lost(name),)  # noqa: E731
        else:
            forward, counts = self._compile_forward(name, children, keeps=keeps)
        if is_known:
            self._known.add(name)
        if name not in self._calls:
            forward.__qualname__ = "forward"  # its name in Python's own errors
        self._edges[name] = counts, tuple(child for child, _ in children)
        return forward

    def _keeps_values(self, name: str) -> bool:
        """Return whether a node may use, change or resend forwarded values: only a user's processor does.

        A BatchProcessor's context has copied them.
        """
        processor = self._processors.get(name)
        if isinstance(innermost(processor), BatchProcessor):
            return False
        return processor is not None and not (isinstance(processor, Processor) and processor.takes_tuples)

    def _is_plain_sink(self, name: str) -> bool:
        """Return whether a node only reads a record during its call, and passes it to no function of the user's."""
        node = self._nodes[name]
        return isinstance(node, SinkNode) and isinstance(node.topic, str) and node.partitioner is None

    def _forwards_each(self, name: str) -> bool:
        processor = self._processors.get(name)
        return isinstance(processor, ValueTransformer) or (processor is not None and processor.forwards_each)

    def _says_what_it_got(self, name: str) -> bool:
        """Return whether the counts of a compiled node's output edges give the number of its input records."""
        return name in self._known and self._parents[name] == 1 and self._forwards_each(name)

    def _lost(self, name: str) -> int:
        """Return the number of records that a node received and did not forward: they failed, or it dropped them."""
        dropped = self._metrics[name].dropped
        return self._failures.skipped[name] + sum(dropped.values()) - dropped[SKIPPED]

    def _is_alone(self, topic: str) -> bool:
        """Return whether a topic gets the records of one edge only."""
        below = [self._nodes[child] for each in self._subtopology.children.values() for child in each]
        topics = [each.topic for each in below if isinstance(each, SinkNode)]
        names = [self._outputs.topic_name(each) for each in topics if isinstance(each, str)]
        return len(names) == len(topics) and names.count(self._outputs.topic_name(topic)) == 1

    def _compile_uncounted(self, name: str, child: str, run: Run, *, keeps: bool) -> Callable[..., None]:
        """Return forward(record, to=None) to an only child, where the number of records is known otherwise."""
        if self._may_call(name, child, run):
            self._calls[name] = child
            return run
        failed = self._failures.processing
        if keeps and not self._is_plain_sink(child):
            run = _with_own_values(run)

        def forward(record: Record, to: str | None = None) -> None:
            if to is not None and to != child:
                raise _not_a_child(name, to, [child], record)
            try:
                run(record)
            except RECORD_ERRORS as error:
                failed(child, record, error)

        return forward if compiled is None else compiled.forward(forward, run, failed, child, RECORD_ERRORS, None)

    def _may_call(self, name: str, child: str, run: Run) -> bool:
        """Return whether a node may call its only child without an edge: whoever called the node catches all errors."""
        processor, below, context = self._processors.get(name), self._processors.get(child), self._contexts.get(child)
        return (
            isinstance(processor, Operator)
            and isinstance(below, Operator)
            and isinstance(context, NodeContext)
            and processor.forwards_last
            and (isinstance(run, FunctionType) or run is context.send)
            and not any(map(self._has_record_cache, (self._nodes[name], self._nodes[child])))
        )

    def _find_failed(self, node: str, record: object, error: Exception | SystemExit) -> tuple[str, object]:
        """Return the failed node and its record, among `node` and the nodes below it that are called without an edge.

        It is the last one whose function is in the traceback. So only a failure costs something.
        """
        frames = (frame for frame, _ in walk_tb(error.__traceback__))
        failed, run, below = (node, record), None, node if node in self._calls else None
        while below is not None:
            if self._runs[below] is not run:  # else it passes all on: its function is that of its child
                run = self._runs[below]
                code = getattr(run, "__code__", None)
                frame = next((each for each in frames if each.f_code is code), None)
                if frame is None:
                    break
                record = frame.f_locals[frame.f_code.co_varnames[0]]
            failed, below = (below, record), self._calls.get(below)
        return failed

    def _compile_forward(
        self, name: str, children: list[tuple[str, Run]], *, keeps: bool
    ) -> tuple[Callable[..., None], EdgeCounts]:
        """Return forward(record, to=None) and its counts. `keeps`: the node keeps the values that it forwards."""
        sent = 0  # a variable of the function costs less than an element of a list
        counts = [0] * len(children)
        failed = self._failures.processing
        index = {child: position for position, (child, _) in enumerate(children)}
        runs = {
            child: _with_own_values(run) if keeps and not self._is_plain_sink(child) else run for child, run in children
        }

        def forward_to(record: Record, to: str) -> None:
            run = runs.get(to)
            if run is None:
                raise _not_a_child(name, to, runs, record)
            counts[index[to]] += 1
            try:
                run(record)
            except RECORD_ERRORS as error:
                failed(to, record, error)

        if len(children) == 1:
            only, only_run = children[0]
            if runs[only] is not only_run:

                def forward_own(record: Record, to: str | None = None) -> None:
                    nonlocal sent
                    if to is not None and to != only:
                        forward_to(record, to)
                    sent += 1
                    try:  # as `_with_own_values` does, without its call
                        if type(record[1]) in IMMUTABLE and type(record[0]) in IMMUTABLE:
                            only_run(record)
                        else:
                            only_run(own_record(record))
                    except RECORD_ERRORS as error:
                        failed(only, record, error)

                if compiled is None:
                    return forward_own, lambda: (sent,)
                fast = compiled.forward(forward_own, only_run, failed, only, RECORD_ERRORS, IMMUTABLE)
                return fast, lambda: (sent + fast.count,)

            def forward(record: Record, to: str | None = None) -> None:
                nonlocal sent
                if to is not None and to != only:
                    forward_to(record, to)  # raises: there is no such child
                sent += 1
                # A try costs nothing until something is raised. So every edge has one, and a record is skipped at its
                # node only.
                try:
                    only_run(record)
                except RECORD_ERRORS as error:
                    failed(only, record, error)

            if compiled is None:
                return forward, lambda: (sent,)
            straight = compiled.forward(forward, only_run, failed, only, RECORD_ERRORS, None)
            return straight, lambda: (sent + straight.count,)

        # The last child may have the record itself, where nobody has it afterwards.
        to_all = [
            (
                child,
                _with_own_values(run) if child != children[-1][0] and not self._is_plain_sink(child) else runs[child],
            )
            for child, run in children
        ]

        def forward_all(record: Record, to: str | None = None) -> None:
            nonlocal sent
            if to is not None:
                forward_to(record, to)
                return
            sent += 1
            for child, run in to_all:
                try:
                    run(record)
                except RECORD_ERRORS as error:
                    failed(child, record, error)

        return forward_all, lambda: (sent, *counts)

    # ------------------------------------------------------------------ afterwards

    def count(self) -> None:
        """Update the metrics' counts of records from the counts of the edges."""
        received = self._received = dict.fromkeys(self._nodes, 0)
        for name in self._nodes:  # parents first
            if name not in self._edges:
                continue
            counts, children = self._edges[name]
            to_all, *to_one = counts()
            self._metrics[name].records_out = to_all + sum(to_one)
            for child in children:
                received[child] += to_all
            for child, count in zip(children, to_one, strict=False):
                received[child] += count
        for name, node in self._nodes.items():
            metrics = self._metrics[name]
            metrics.records_in = metrics.records_out if isinstance(node, SourceNode) else received[name]
            if isinstance(node, SinkNode):
                metrics.records_out = received[name] - sum(metrics.dropped.values())

    def close(self) -> None:
        """Close every processor, parents first; idempotent. Errors are logged, and the others are still closed."""
        if self._is_closed:
            return
        self._is_closed = True
        for name, processor in reversed(self._processors.items()):
            context = self._contexts.get(name)
            if isinstance(context, NodeContext):
                context.forward = context.send = _forward_in_close
            try:
                processor.close()
            except RECORD_ERRORS as error:
                _log.warning(
                    "task %s, node %r: close raised %s: %s", self._shared.task_id, name, type(error).__name__, error
                )


def _not_a_child(name: str, to: str, children: Iterable[str], record: Record) -> Exception:
    there = ", ".join(children) or "none"
    return no_child(f"node {name!r} forwards to {to!r}, which is not a child of it; children: {there}", record)


def _with_own_values(run: Run) -> Run:
    """Return `run` of a child that gets its own key and value, where these can be changed."""

    def run_with_own(record: Record) -> None:
        if type(record[1]) in IMMUTABLE and type(record[0]) in IMMUTABLE:
            run(record)
        else:
            run(own_record(record))

    return run_with_own


def _sending_records(forward: Callable[..., None]) -> Callable[..., None]:
    """Return a `forward` that makes a Record of a plain tuple."""

    def send(record: Record, to: str | None = None) -> None:
        forward(as_record(record), to)

    send.__qualname__ = "forward"
    return send


def _forward_in_close(record: Record, to: str | None = None) -> None:
    raise TopologyError(
        "it forwards a record, which nothing would commit any more; forward in process or in a punctuator"
    )
