"""profile: runs a program aside, on real records, and returns a Profile: where its time goes, as data."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from penstock import (
    Application,
    ConfigError,
    RuntimeUnavailableError,
    SinkNode,
    SystemClock,
    Topology,
    TopologyBuilder,
)
from penstock.plugins.engine.program.stored_id import stored_application
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import tune_garbage_collector

from ..topics import named_topics
from .hooks import PROCESS, Described, hooked_worker
from .inputs import Inputs, Records, check_inputs, read_inputs, serialized_inputs
from .sampler import Function, Sampler, Stack, check_flame, describe_node, why_not, write_flame
from .scratch import MeasuredWorker, ScratchRun, Totals
from .stopwatch import CallNode, Stopwatch

_MOST_RECORDS, _WARM_UP = 50_000, 1_000


def profile(
    program: Application | Topology | TopologyBuilder,
    records: Records | None = None,
    *,
    limit: int = _MOST_RECORDS,
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
    for name, number in (("limit", limit), ("commit_every", 1 if commit_every is None else commit_every)):
        if type(number) is not int or number < 1:
            raise ConfigError(f"{name}: expected a number of records from 1 on, found {number!r}")
    topics: dict[str, int] = {}
    if records is not None:
        inputs = serialized_inputs(application, records, partitions)
    else:
        with closing(open_log(application.settings)) as log:
            application = stored_application(application, log)
            inputs = read_inputs(application, log, limit, from_beginning, since_ms)
            topics = {name: info.partitions for name, info in log.topics().items() if not info.internal}
    return profile_inputs(application, inputs, topics, commit_every=commit_every, once=once)


@dataclass(frozen=True)
class StoreUse:
    """What one node did with one store: calls by method, and their time."""

    store: str
    calls: Mapping[str, int]
    seconds: float


@dataclass(frozen=True)
class NodeProfile:
    """One node, over all its tasks.

    `own_seconds` are those of the node itself: without the nodes below it, its stores and its serdes. `seconds` are
    with `stores` and `serde_seconds`: decoding at a source, encoding at a sink, and what stores read and write for the
    node. `schedule_calls`: how often its punctuators and timers were called; their time is its own. Both times are None
    for a node that fills a global store.
    """

    name: str
    kind: str
    functions: Sequence[str]
    records_in: int
    records_out: int
    dropped: int
    own_seconds: float | None
    serde_seconds: float
    stores: Sequence[StoreUse] = ()
    schedule_calls: int = 0

    @property
    def seconds(self) -> float | None:
        """The time of the node with its stores and serdes."""
        if self.own_seconds is None:
            return None
        return self.own_seconds + self.serde_seconds + sum(store.seconds for store in self.stores)


@dataclass(frozen=True)
class StoreProfile:
    """One store, over all its tasks. `commit_seconds`: serializing what nodes have put, before commits."""

    name: str
    calls: Mapping[str, int]
    seconds: float
    commit_seconds: float


@dataclass(frozen=True)
class Profile:
    """The division of a program's time.

    `records` are the records of the source topics. `seconds` and `phases` are of the run without hooks, `cpu_seconds`
    its CPU time; the phases that make up processing are divided as in the run with hooks. `hooked_seconds` and
    `hooked_cpu_seconds` are of that run. With `once` there was no other. `error` ended the run early. `why_no_samples`
    says why `functions` and `stacks` are empty, if they are.
    """

    application_id: str
    records: int
    seconds: float
    cpu_seconds: float
    hooked_seconds: float
    hooked_cpu_seconds: float
    once: bool
    commits: int
    phases: Mapping[str, float]
    nodes: Sequence[NodeProfile]
    stores: Sequence[StoreProfile]
    functions: Sequence[Function] = ()
    stacks: Mapping[Stack, float] = field(default_factory=dict)
    samples: int = 0
    why_no_samples: str = ""
    error: Exception | None = None

    @property
    def records_per_second(self) -> float:
        """Records by the time without hooks."""
        return self.records / max(self.seconds, 1e-9)

    @property
    def overhead(self) -> float | None:
        """How much more CPU time the run with hooks took, as a share; None with `once`."""
        if self.once or self.cpu_seconds <= 0:
            return None
        return self.hooked_cpu_seconds / self.cpu_seconds - 1.0

    def write_flame(self, path: str) -> None:
        """Write a flame graph: FILE.json for https://speedscope.app, FILE.folded or FILE.txt as collapsed stacks.

        Raises ConfigError for another name, RuntimeUnavailableError where no samples could be taken.
        """
        check_flame(Path(path))
        if self.why_no_samples:
            raise RuntimeUnavailableError(f"profile: there is no flame graph: {self.why_no_samples}")
        write_flame(self.stacks, Path(path), self.application_id)


def profile_inputs(
    application: Application,
    inputs: Inputs,
    topics: Mapping[str, int] | None = None,
    *,
    commit_every: int | None = None,
    once: bool = False,
) -> Profile:
    """Run the application with `inputs`; `topics`: numbers of partitions of further output topics."""
    check_inputs(application, inputs)
    named = named_topics(application)
    outputs = {topic: count for topic, count in (topics or {}).items() if named is None or topic in named}
    now_ms = SystemClock().now_ms()
    watch, described = Stopwatch(), Described()
    error: Exception | None = None

    def run(records: Inputs, worker: type[MeasuredWorker], sampler: Sampler | None = None) -> Totals:
        nonlocal error
        with closing(ScratchRun(application, records, outputs, now_ms, worker, commit_every)) as scratch:
            scratch.open()
            watch.begin()
            try:
                with nullcontext() if sampler is None else sampler.running():
                    scratch.process()
            except Exception as raised:
                error = raised
            return scratch.totals

    why_no_samples = why_not()
    sampler = None if why_no_samples else Sampler(watch.labels)
    with _tuned_garbage_collector():
        if not once:
            run({topic: each.first(_WARM_UP) for topic, each in inputs.items()}, MeasuredWorker)
        plain = None if once else run(inputs, MeasuredWorker)
        watch.calibrate()
        error = None
        hooked = run(inputs, hooked_worker(watch, described), sampler)
    timed = plain or hooked
    times = _Times(application, watch.calls(), timed, hooked)
    return Profile(
        application.id,
        _count(application, hooked),
        timed.seconds,
        timed.cpu,
        hooked.seconds,
        hooked.cpu,
        once,
        timed.counts.commits,
        times.phases(timed.counts.phases),
        times.nodes(application, hooked, timed.decode, described),
        times.stores(),
        () if sampler is None else sampler.functions(),
        {} if sampler is None else sampler.stacks(),
        0 if sampler is None else sampler.samples,
        why_no_samples,
        error,
    )


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


def _count(application: Application, hooked: Totals) -> int:
    """Return the number of processed records of source topics, without repartition topics."""
    program, nodes = application.program, hooked.counts.nodes
    sources = [source for part in program.subtopologies for source in part.sources]
    outside = [source.name for source in sources if not set(source.topics) & set(program.internal_topics)]
    return sum(nodes[name]["in"] for name in outside if name in nodes)


class _Times:
    """The run with hooks, divided among phases, nodes and stores.

    The times are shares of the processing of `timed`, a run without hooks: what is left of the hooks' cost, or the
    machine's speed, made all of them longer alike.
    """

    def __init__(self, application: Application, calls: list[CallNode], timed: Totals, hooked: Totals) -> None:
        self._processing = {"nodes": 0.0, "stores": 0.0, "sinks": 0.0, "loop": 0.0}
        self._own: dict[str, float] = defaultdict(float)
        self._serdes: dict[str, float] = defaultdict(float)
        self._called: Counter[str] = Counter()
        # By store and node; None for the engine.
        self._uses: dict[tuple[str, str | None], Counter[str]] = {}
        self._use_seconds: dict[tuple[str, str | None], float] = defaultdict(float)
        # By store, with serdes.
        self._store_seconds: dict[str, float] = defaultdict(float)
        self._commit_seconds: dict[str, float] = defaultdict(float)
        sinks = {name for name, node in application.program.nodes.items() if isinstance(node, SinkNode)}
        for call in calls:
            if call.path and call.path[-1] == PROCESS:
                self._processing[_phase(call, sinks)] += call.seconds
        # Decoding is a part of the loop, and is counted beside.
        decoded = hooked.counts.phases.get("decode", 0.0)
        self._processing["loop"] = max(0.0, self._processing["loop"] - decoded)
        self._whole = sum(self._processing.values())
        processed = sum(timed.counts.phases.get(each, 0.0) for each in ("process", "punctuate"))
        scale = processed / self._whole if self._whole > 0 and processed > 0 else 1.0
        for call in calls[1:]:
            self._add(call, call.seconds * scale)

    def _add(self, call: CallNode, seconds: float) -> None:
        node, inside = call.inside()
        part = call.path[0]
        stores = [each for each in inside if each.kind in ("store", "flush")]
        use = (stores[-1].name, node) if stores else None
        if use is not None:
            of_store = self._commit_seconds if stores[-1].kind == "flush" else self._store_seconds
            of_store[use[0]] += seconds
            counts = self._uses.setdefault(use, Counter())
            if part.kind == "store" and len(stores) == 1 and call.times:
                counts[part.of] += call.times
        if node is None:
            return
        if any(each.kind == "serde" for each in inside):
            self._serdes[node] += seconds
        elif use is not None:
            self._use_seconds[use] += seconds
        else:
            self._own[node] += seconds
        if part.kind == "schedule":
            self._called[node] += call.times

    def phases(self, phases: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds of each phase of a run; its processing is divided as that of the run with hooks."""
        left = dict(phases)

        def take(*names: str) -> float:
            return sum(left.pop(name, 0.0) for name in names)

        processing = take("process", "punctuate")
        taken = {
            "read": take("read"),
            "decode": take("decode"),
            **{name: processing * part / (self._whole or 1.0) for name, part in self._processing.items()},
            "flush and write stores": take("state"),
            "changelog": take("changelog", "snapshot"),
            "commit": take("write"),
        }
        taken["other"] = sum(left.values())
        return {name: max(0.0, seconds) for name, seconds in taken.items()}

    def nodes(
        self, application: Application, hooked: Totals, decode: Mapping[str, float], described: Described
    ) -> list[NodeProfile]:
        fill = {node.name for store in application.program.global_stores for node in (store.source, store.processor)}
        profiles = []
        for name, node in application.program.nodes.items():
            counts = hooked.counts.nodes.get(name, {"in": 0, "out": 0, "dropped": {}})
            kind, functions = described.get(name) or describe_node(node, None)
            profiles.append(
                NodeProfile(
                    name,
                    f"{kind}, of a global store" if name in fill else kind,
                    functions,
                    counts["in"],
                    counts["out"],
                    sum(counts["dropped"].values()),
                    None if name in fill else self._own[name],
                    self._serdes[name] + decode.get(name, 0.0),
                    tuple(
                        StoreUse(store, dict(calls), self._use_seconds[store, user])
                        for (store, user), calls in self._uses.items()
                        if user == name and calls
                    ),
                    self._called[name],
                )
            )
        return profiles

    def stores(self) -> list[StoreProfile]:
        """Return the stores that were used, or written at commits."""
        calls: dict[str, Counter[str]] = {}
        for (store, _), counts in self._uses.items():
            calls.setdefault(store, Counter()).update(counts)
        return [
            StoreProfile(store, dict(counts), self._store_seconds[store], self._commit_seconds[store])
            for store, counts in calls.items()
        ]


def _phase(call: CallNode, sinks: set[str]) -> str:
    node, inside = call.inside()
    if node is None:
        return "loop"
    if any(part.kind == "store" for part in inside):
        return "stores"
    return "sinks" if node in sinks else "nodes"
