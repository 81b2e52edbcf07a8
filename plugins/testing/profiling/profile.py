"""profile: runs a program aside, on real records, and says where its time goes."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from penstock import (
    Application,
    ConfigError,
    Log,
    Record,
    SinkNode,
    SourceNode,
    SystemClock,
    Topology,
    TopologyBuilder,
    UnknownTopicError,
)
from penstock.plugins.engine.program.stored_id import stored_application
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import tune_garbage_collector
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.program.checks import nearest

from ..topics import check_partitions, named_topics, serialized
from .functions import describe_node
from .hooks import PROCESS, Described, hooked_worker
from .inputs import MOST_RECORDS, Chosen, Inputs, TopicInput, check_inputs, read_inputs, source_topics
from .result import NodeProfile, Profile, StoreProfile, StoreUse
from .sampler import Sampler, why_not
from .scratch import ScratchRun
from .stopwatch import Call, Part, Stopwatch, ancestors
from .worker import MeasuredWorker, Seconds, Totals

_WARM_UP = 1_000
Records = Mapping[str, Iterable[Record | tuple[Any, ...]]]


def profile(
    program: Application | Topology | TopologyBuilder,
    records: Records | None = None,
    *,
    limit: int = MOST_RECORDS,
    from_beginning: bool = False,
    since_ms: int | None = None,
    partitions: int | Mapping[str, int] = 1,
    commit_every: int | None = None,
    once: bool = False,
) -> Profile:
    """Run a program aside and return where its time goes, node by node and phase by phase.

    The real tasks run, in this thread: with the application's serdes and store backends, on a log, a changelog and
    state in a temporary directory. Without `records`, committed records are copied from the application's log: of each
    source topic the newest `limit`, or the oldest `from_beginning` or from `since_ms` on. That log is only read.
    `records` are by source topic, as for `TopologyTestDriver.pipe_many`, with so many `partitions`.

    It runs twice, without and with hooks; before that with up to 1,000 records, to warm up. So functions that do
    something outside do it as often, or with `once` only once. A commit comes as the settings say, or `commit_every` so
    many records of a task. An error of the program ends the run; the profile is of what came before, and has the error.
    Raises ConfigError where there are no records, UnknownTopicError for a topic that is not there.
    """
    application = program if isinstance(program, Application) else Application("profile", program)
    if type(limit) is not int or limit < 1:
        raise ConfigError(f"limit: expected a number of records from 1 on, found {limit!r}")
    if commit_every is not None and (type(commit_every) is not int or commit_every < 1):
        raise ConfigError(f"commit_every: expected a number of records from 1 on, found {commit_every!r}")
    if records is not None:
        inputs = _serialized(application, records, partitions)
        return profile_inputs(application, inputs, commit_every=commit_every, once=once)
    with closing(open_log(application.settings)) as log:
        application = stored_application(application, log)
        inputs = read_inputs(application, log, Chosen(limit, from_beginning, since_ms))
        topics = partitions_of(log)
    return profile_inputs(application, inputs, topics, commit_every=commit_every, once=once)


def partitions_of(log: Log) -> dict[str, int]:
    """Return the topics of a log, without internal ones, with their numbers of partitions."""
    return {name: info.partitions for name, info in log.topics().items() if not info.internal}


def _serialized(application: Application, records: Records, partitions: int | Mapping[str, int]) -> Inputs:
    topics = source_topics(application, records)
    check_partitions(partitions, None)
    counts = {each: partitions if isinstance(partitions, int) else partitions.get(each, 1) for each in topics}
    inputs = {each: TopicInput(counts[each]) for each in topics}
    now_ms = SystemClock().now_ms()
    for topic, some in records.items():
        if topic not in inputs:
            raise UnknownTopicError(
                f"no source reads topic {topic!r}{nearest(topic, topics)}; the sources read: {', '.join(topics)}"
            )
        source = source_of(application, topic)
        inputs[topic].batches.append(serialized(topic, source, application.settings, some, None, counts[topic], now_ms))
    return inputs


def source_of(application: Application, topic: str) -> SourceNode:
    """Return the source that reads a topic; that of a global store, if no task reads it."""
    sources = [node for node in application.program.nodes.values() if isinstance(node, SourceNode)]
    return next(
        (each for each in sources if topic in each.topics),
        next((each for each in sources if each.pattern is not None and each.pattern.fullmatch(topic)), sources[0]),
    )


def profile_inputs(
    application: Application,
    inputs: Inputs,
    topics: Mapping[str, int] | None = None,
    *,
    commit_every: int | None = None,
    once: bool = False,
) -> Profile:
    """Run the application with `inputs`, in the topics of which it knows the number of partitions (`topics`)."""
    check_inputs(application, inputs)
    now_ms, known = SystemClock().now_ms(), _needed(application, topics or {})
    watch, described = Stopwatch(), Described()
    plain: Totals | None = None

    def run(records: Inputs, worker: type[MeasuredWorker], sampler: Sampler | None = None) -> _Run:
        with (
            TemporaryDirectory("profile") as directory,
            closing(
                ScratchRun(application, records, known, directory, now_ms, worker=worker, commit_every=commit_every)
            ) as found,
        ):
            error: Exception | None = None
            found.open()
            watch.begin()
            try:
                found.process(sampler)
            except Exception as raised:
                error = raised
            return _Run(found, error)

    with _tuned_garbage_collector():
        if not once:
            run({topic: each.first(_WARM_UP) for topic, each in inputs.items()}, MeasuredWorker)
            plain = run(inputs, MeasuredWorker).totals
        why_no_samples = why_not()
        sampler = None if why_no_samples else Sampler(watch.labels)
        watch.calibrate()
        hooked = run(inputs, hooked_worker(watch, described), sampler)
    of_run = plain or hooked.totals
    calls = watch.calls()
    processing = _processing(application, hooked.totals, calls)
    calls = _scaled(calls, of_run, processing)
    return Profile(
        application.id,
        _count(application, hooked),
        of_run.seconds,
        of_run.cpu,
        hooked.totals.seconds,
        hooked.totals.cpu,
        once,
        of_run.commits,
        _phases(of_run, processing),
        _nodes(application, hooked, of_run.decode, calls, described),
        _stores(calls),
        () if sampler is None else sampler.functions(),
        {} if sampler is None else sampler.stacks(),
        0 if sampler is None else sampler.samples,
        why_no_samples,
        hooked.error,
    )


class _Run:
    """What is left of a run that is closed."""

    def __init__(self, run: ScratchRun, error: Exception | None) -> None:
        self.totals, self.error = run.totals, error
        self.metrics = run.metrics()


def _needed(application: Application, topics: Mapping[str, int]) -> dict[str, int]:
    """Return those topics of the log that the program may write to: all, where a function chooses them."""
    named = named_topics(application)
    return {topic: count for topic, count in topics.items() if named is None or topic in named}


@contextmanager
def _tuned_garbage_collector() -> Iterator[None]:
    """Let the garbage collector be that of a worker meanwhile."""
    before = gc.get_threshold()
    tune_garbage_collector()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


# ---------------------------------------------------------------------- what was found


def _scaled(calls: list[Call], run: Totals, processing: Mapping[str, float]) -> list[Call]:
    """Return the times of the run with hooks as shares of the processing of `run`, which has none.

    What is left of the hooks' cost, or the machine's speed, made all of them longer alike.
    """
    whole, of_run = sum(processing.values()), run.phases["process"] + run.phases["punctuate"]
    if whole <= 0 or of_run <= 0:
        return calls
    return [each._replace(seconds=each.seconds * of_run / whole) for each in calls]


def _count(application: Application, hooked: _Run) -> int:
    """Return how many records of source topics were processed: not those of repartition topics."""
    program = application.program
    sources = [
        node.name
        for part in program.subtopologies
        for node in part.sources
        if not set(node.topics) & set(program.internal_topics)
    ]
    return sum(hooked.metrics[each].records_in for each in sources if each in hooked.metrics)


def _processing(application: Application, hooked: Totals, calls: list[Call]) -> dict[str, float]:
    """Return how the time of processing is divided in the run with hooks."""
    of = {"nodes": 0.0, "stores": 0.0, "sinks": 0.0, "loop": 0.0}
    sinks = {name for name, node in application.program.nodes.items() if isinstance(node, SinkNode)}
    for index, call in enumerate(calls):
        above = [call.part, *ancestors(calls, index)]
        if above[-1] != PROCESS:
            continue
        owner, inside = _owner(above)
        if owner is None:
            of["loop"] += call.seconds
        elif any(each.kind == "store" for each in inside):
            of["stores"] += call.seconds
        else:
            of["sinks" if owner in sinks else "nodes"] += call.seconds
    # Decoding is a part of the loop, and is counted beside.
    of["loop"] = max(0.0, of["loop"] - hooked.phases["decode"])
    return of


def _phases(run: Totals, processing: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each phase of a run; its processing is divided as that of the run with hooks."""
    taken = Seconds(run.phases)
    whole = sum(processing.values()) or 1.0
    of_run = taken.pop("process", 0.0) + taken.pop("punctuate", 0.0)
    found = {
        "read": taken.pop("read", 0.0),
        "decode": taken.pop("decode", 0.0),
        **{name: of_run * part / whole for name, part in processing.items()},
        "flush and write stores": taken.pop("state", 0.0),
        "changelog": taken.pop("changelog", 0.0) + taken.pop("snapshot", 0.0),
        "commit": taken.pop("write", 0.0),
    }
    found["other"] = sum(taken.values())
    return {name: max(0.0, seconds) for name, seconds in found.items()}


def _owner(above: Sequence[Part]) -> tuple[str | None, Sequence[Part]]:
    """Return the node at work, and what of it: `above` has the innermost part first."""
    for index, each in enumerate(above):
        if each.kind in ("node", "schedule"):
            return each.name, above[:index]
    return None, above


def _nodes(
    application: Application, run: _Run, decoding: Mapping[str, float], calls: list[Call], described: Described
) -> list[NodeProfile]:
    own, serdes, seconds, fired = Seconds(), Seconds(), Seconds(), Counter[str]()
    stores: dict[tuple[str, str], Counter[str]] = {}
    for index, call in enumerate(calls):
        above = [call.part, *ancestors(calls, index)]
        owner, inside = _owner(above)
        if owner is None:
            continue
        store = next((each.name for each in reversed(inside) if each.kind == "store"), None)
        if any(each.kind == "serde" for each in inside):
            serdes[owner] += call.seconds
        elif store is not None:
            seconds[owner, store] += call.seconds
        else:
            own[owner] += call.seconds
        if call.part.kind == "schedule":
            fired[owner] += call.times
        if call.part.kind == "store" and len(inside) == 1 and call.times:
            stores.setdefault((owner, call.part.name), Counter())[call.part.of] += call.times
    for source, took in decoding.items():
        serdes[source] += took
    of_globals = {node.name for each in application.program.global_stores for node in (each.source, each.processor)}
    found = []
    for name, node in application.program.nodes.items():
        metrics = run.metrics.get(name)
        is_global = name in of_globals
        kind, functions = described.get(name) or describe_node(node, None)
        found.append(
            NodeProfile(
                name,
                f"{kind}, of a global store" if is_global else kind,
                functions,
                0 if metrics is None else metrics.records_in,
                0 if metrics is None else metrics.records_out,
                0 if metrics is None else sum(metrics.dropped.values()),
                None if is_global else own[name],
                serdes[name],
                tuple(
                    StoreUse(store, dict(counts), seconds[owner, store])
                    for (owner, store), counts in stores.items()
                    if owner == name
                ),
                fired[name],
            )
        )
    return found


def _stores(calls: list[Call]) -> list[StoreProfile]:
    counts: dict[str, Counter[str]] = {}
    seconds, at_commit = Seconds(), Seconds()
    for index, call in enumerate(calls):
        above = [call.part, *ancestors(calls, index)]
        inside = [each for each in above if each.kind in ("store", "flush")]
        if not inside:
            continue
        [*_, outermost] = inside
        store = counts.setdefault(outermost.name, Counter())
        (at_commit if outermost.kind == "flush" else seconds)[outermost.name] += call.seconds
        if call.part.kind == "store" and len(inside) == 1 and call.times:
            store[call.part.of] += call.times
    return [StoreProfile(name, dict(counts[name]), seconds[name], at_commit[name]) for name in counts]
