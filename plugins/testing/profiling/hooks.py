"""Hooks: a worker whose nodes, stores and serdes are measured. They are put in when a task is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from typing import Any

from penstock import Node, Serde, Settings, SinkNode, StateStore, StoreContext, Subtopology
from penstock.plugins.engine.task.local_state.store_context import TaskStoreContext
from penstock.plugins.engine.task.local_state.task_state import TaskState
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.store.record_cache import RecordCache
from penstock.task.compiling import Nodes, Run
from penstock.task.context import Shared
from penstock.task.progress import TaskProgress
from penstock.task.task import Task

from .sampler import describe_node
from .scratch import MeasuredTask, MeasuredWorker
from .stopwatch import Part, Stopwatch

_OF_SERDE = frozenset({"serialize", "deserialize", "deserialize_column"})
_OF_ONE = frozenset({"get", "put", "delete", "put_if_absent"})
"""Methods of stores that return no iterator."""
PROCESS = Part("phase", "process")
_ENGINE_ONLY = frozenset(
    {"flush", "unflushed", "discard", "close", "entries_from", "portions", "flush_cache", "settle", "encoded"}
)
"""Methods of stores that no node calls."""

Described = dict[str, tuple[str, tuple[str, ...]]]
"""By node: its kind, and the user's functions in it."""


def hooked_worker(watch: Stopwatch, described: Described) -> type[MeasuredWorker]:
    """Return a worker class whose parts `watch` measures; `described` gets descriptions of its nodes."""

    class HookedProgress(TaskProgress):
        __slots__ = ()

        def set_occasion(self, occasion: Any) -> None:
            if occasion is None:
                watch.leave()
            else:
                watch.enter(Part("schedule", occasion[0]))
            super().set_occasion(occasion)

    class HookedNodes(Nodes):
        def __init__(self, subtopology: Subtopology, shared: Shared, *arguments: Any) -> None:
            nodes = tuple(_with_timed_serdes(node, shared.settings, watch) for node in subtopology.nodes)
            super().__init__(replace(subtopology, nodes=nodes), shared, *arguments)

        def _compile_node(self, node: Node, children: list[tuple[str, Run]]) -> Run:
            run = super()._compile_node(node, children)
            described[node.name] = describe_node(node, self._processors.get(node.name))
            return watch.hook(Part("node", node.name), run)

        def _compile_edges(self, name: str, children: list[tuple[str, Run]]) -> Callable[..., None]:
            forward = super()._compile_edges(name, children)
            only = self._nodes[children[0][0]] if len(children) == 1 else None
            if isinstance(only, SinkNode) and isinstance(only.topic, str) and self._is_plain_sink(only.name):
                # This `forward` is that of the sink itself; see `Nodes`.
                return watch.hook(Part("node", only.name), forward)
            return forward

    def measured(run: Callable[..., Any]) -> Callable[..., Any]:
        def process(task: Task, *given: Any) -> Any:
            watch.enter(PROCESS)
            try:
                return run(task, *given)
            finally:
                watch.leave()

        return process

    class HookedTask(MeasuredTask):
        progress_class = HookedProgress
        nodes_class = HookedNodes

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            for store in self.stores.values():
                if store.record_cache is not None:
                    _hook_flushes(store.record_cache, watch)

        process = measured(MeasuredTask.process)
        punctuate_wall_clock = measured(MeasuredTask.punctuate_wall_clock)
        take_commit = measured(MeasuredTask.take_commit)

    class HookedContext(TaskStoreContext):
        def serde(self, given: SerdeLike, store: str) -> Serde[Any]:
            return timed_serde(super().serde(given, store), watch)

    class HookedState(TaskState):
        def _context(self, store: str, index: Any) -> StoreContext:
            return HookedContext(**vars(super()._context(store, index)))

        def _build(self, version: str) -> None:
            super()._build(version)
            for name, store in self.stores.items():
                hook_store(store, name, watch)

    class HookedWorker(MeasuredWorker):
        task_class: type[Task] = HookedTask
        state_class = HookedState

        def _make_task(self, *arguments: Any, **options: Any) -> Task:
            for name, store in self._resources.globals_of(self._application).stores.items():
                hook_store(store, name, watch)
            return super()._make_task(*arguments, **options)

    return HookedWorker


# ---------------------------------------------------------------------- stores


def hook_store(store: StateStore, name: str, watch: Stopwatch) -> None:
    """Let `watch` count the calls of a store's methods, once. A store with `__slots__` is left as it is."""
    if "is_profiled" in getattr(store, "__dict__", {"is_profiled": True}):
        return
    for method in dir(type(store)):
        of_class = getattr(type(store), method)
        if method[0] != "_" and method not in _ENGINE_ONLY and callable(of_class) and not isinstance(of_class, type):
            part, run = Part("store", name, method), getattr(store, method)
            setattr(store, method, watch.hook(part, run if method in _OF_ONE else _timing_scans(run, part, watch)))
    setattr(store, "flush", watch.hook(Part("flush", name), store.flush))  # noqa: B010
    setattr(store, "is_profiled", True)  # noqa: B010


def _timing_scans(run: Callable[..., Any], part: Part, watch: Stopwatch) -> Callable[..., Any]:
    """Return `run`, with the iterators that it returns measured, too."""
    step = watch.hook(part._replace(of=f"{part.of} entries"), next)

    def scan(*given: Any, **named: Any) -> Any:
        found = run(*given, **named)
        return _TimedScan(found, step) if hasattr(found, "__next__") else found

    return scan


class _TimedScan:
    """What a store returns to be iterated over, with the time of each step counted for the store."""

    def __init__(self, found: Any, step: Callable[[Any], Any]) -> None:
        self._found, self._step = found, step

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._step(self._found)

    def __enter__(self) -> Iterator[Any]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if hasattr(self._found, "close"):
            self._found.close()


def _hook_flushes(cache: RecordCache, watch: Stopwatch) -> None:
    """Count a record cache's forwarding for the node that listens to it."""
    emit, known = cache.emit, dict[str, Callable[..., Any]]()

    def emit_timed(node: str, listener: Any, record: Any, source: Any) -> None:
        if node not in known:
            known[node] = watch.hook(Part("node", node), emit)
        known[node](node, listener, record, source)

    cache.emit = emit_timed


# ---------------------------------------------------------------------- serdes


def _with_timed_serdes(node: Node, settings: Settings, watch: Stopwatch) -> Node:
    if not isinstance(node, SinkNode):
        return node
    key, value = (
        resolve_serde(given, default, f"sink {node.name!r}", settings.of_plugins)
        for given, default in ((node.key_serde, settings.key_serde), (node.value_serde, settings.value_serde))
    )
    return replace(node, key_serde=timed_serde(key, watch), value_serde=timed_serde(value, watch))


def timed_serde(serde: Serde[Any], watch: Stopwatch) -> Serde[Any]:
    """Return a copy of a serde whose methods `watch` measures.

    Core's own are left as they are: stores know their classes, and they take less time than a look at the clock. So is
    one that takes no other methods.
    """
    kind = type(serde).__name__
    if type(serde).__module__ == "penstock.serde" or getattr(serde, "is_profiled", False):
        return serde
    timed = copy(serde)

    def serializer() -> Callable[[Any], bytes]:
        fast = type(serde).serializer(timed)
        return fast if fast is methods["serialize"] else watch.hook(Part("serde", kind, "serialize"), fast)

    def remade(method: str) -> Callable[..., Any]:
        return lambda *given, **named: timed_serde(getattr(serde, method)(*given, **named), watch)

    methods: dict[str, Any] = {name: watch.hook(Part("serde", kind, name), getattr(timed, name)) for name in _OF_SERDE}
    methods |= {name: remade(name) for name in ("configure", "bind", "for_values")}
    try:
        for name, method in {**methods, "serializer": serializer, "is_profiled": True}.items():
            object.__setattr__(timed, name, method)
    except AttributeError:
        return serde
    return timed
