"""The processes of a test driver, each with open tasks as in a task host; and FindsMisuse, which wraps processors."""

from __future__ import annotations

import logging
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_ident
from types import FunctionType, ModuleType
from typing import Any

from penstock import (
    AnySink,
    Application,
    Clock,
    Log,
    NodeMetrics,
    Processor,
    ProcessorContext,
    ProcessorWrapper,
    Record,
    TaskId,
    TopicPartition,
    TopologyError,
    ValueTransformer,
    ValueTransformerContext,
    World,
    WrappingProcessor,
    WrappingTransformer,
)
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.shipping import Arrived, cannot_arrive
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.stores.memory import MemoryBackend
from penstock.support.own_copy import IMMUTABLE, own_copy
from penstock.support.repeats import Repeats
from penstock.world.calls import Calls

_HINT = (
    "Where tasks are re-opened, each process has a copy of the program, as a task host has: what the test has is not "
    "changed, and the next process starts with what was there when the driver was made. Keep state in stores; read "
    "output topics, or collect records with a driver that does not re-open tasks"
)

_log = logging.getLogger("penstock.testing")


Targets = Callable[[str, AnySink], AnySink]
"""Returns the target of an external sink: see `World.sink`."""


class TaskProcesses:
    """One process at a time, on one host at a time.

    `packed` is the application as bytes, and `directory` has the hosts' directories. `ships`: each process has a copy
    made of `packed`; else the objects of the application itself run, until `reopen` or `move`. `sinks`: the targets.
    """

    def __init__(
        self,
        application: Application,
        packed: bytes,
        log: Log,
        clock: Clock,
        directory: Path,
        ships: bool,
        calls: Calls,
        sinks: Targets,
    ) -> None:
        self.misuse = Misuse()
        self._hints: list[str] = []
        self._application = application
        self._packed = packed
        self._log = log
        self._clock = clock
        self._directory = directory
        self._ships = ships
        self._calls = calls
        self._sinks = sinks
        self._host = 0
        self._process: TaskProcess | None = None
        self._global_metrics: dict[str, NodeMetrics] = {}
        # A line is logged once a minute for all processes: each has one task that is open, often for one record.
        self._repeats = Repeats(clock.now_ms)

    @property
    def hints(self) -> list[str]:
        """What the program does that would show elsewhere."""
        return [*self._hints, *self.misuse.changed_values, *self.misuse.not_put]

    def check_threads(self) -> None:
        """Raise TopologyError if a processor has forwarded in another thread; its own error may be lost there."""
        if said := self.misuse.elsewhere:
            self.misuse.elsewhere = []
            raise TopologyError(said[0])

    def running(self, *, looking: bool = False) -> TaskProcess:
        """Return the process that runs tasks: the next one if there is none, or if the driver itself used it.

        `looking`: the user of the process, who has the test's classes.
        """
        self.misuse.thread = get_ident()
        ships = self._ships and not looking
        if self._process is not None and self._process.is_shipped != ships:
            self.end()
        if self._process is None:
            copy = ShippedCopy(self._application, self._packed) if ships else None
            application = FindsMisuse.in_application(
                self._application if copy is None else copy.application, self.misuse
            )
            resources = _Resources(self._clock, self._host_directory, self._repeats, self._calls, self._sinks)
            self._process = TaskProcess(application, self._log, resources, copy)
        return self._process

    def end(self) -> None:
        """End the process, if one runs; committed data stays."""
        process, self._process = self._process, None
        if process is None:
            return
        self._global_metrics = _added(self._global_metrics, process.global_metrics())
        process.close()
        for change in process.changes():
            if change not in self._hints:
                self._hints.append(change)
                _log.warning("%s. %s", change, _HINT)

    def reopen(self) -> None:
        """End the process; the next one, and all after it, have shipped copies."""
        self.end()
        self._ships = True

    def move(self) -> None:
        """End the process; the next one runs on another host."""
        self.reopen()
        self._forget_host()
        self._host += 1

    def global_metrics(self) -> dict[str, NodeMetrics]:
        """Return the counters of the nodes that fill global stores, over all processes."""
        now = {} if self._process is None else self._process.global_metrics()
        return _added(self._global_metrics, now)

    def close(self) -> None:
        """End the process, and forget its host."""
        self.end()
        self._repeats.write_rest()
        self._forget_host()

    def stored_bytes(self) -> int:
        """Return the bytes of all keys and values in the stores of this host; 0 where they are not in memory."""
        return MemoryBackend.bytes_under(self._host_directory)

    @property
    def _host_directory(self) -> Path:
        return self._directory / f"host-{self._host}"

    def _forget_host(self) -> None:
        MemoryBackend.forget(self._host_directory)
        shutil.rmtree(self._host_directory, ignore_errors=True)


def _added(*counts: Mapping[str, NodeMetrics]) -> dict[str, NodeMetrics]:
    added: dict[str, NodeMetrics] = {}
    for count in counts:
        for name, counted in count.items():
            added.setdefault(name, NodeMetrics()).add(counted)
    return added


class TaskProcess:
    """Runs tasks with `resources`. `copy`: the shipped copy that `application` is, if it is one."""

    def __init__(
        self, application: Application, log: Log, resources: ProcessResources, copy: ShippedCopy | None
    ) -> None:
        self.application = application
        self.is_shipped = copy is not None
        self.resources = resources
        self._copy = copy
        self._log = log
        self._workers: dict[TaskId, TaskWorker] = {}

    def worker(self, task: TaskId, partitions: Sequence[TopicPartition], task_count: int) -> TaskWorker:
        """Return a task of this process, which is opened with its first batch."""
        worker = self._workers.get(task)
        if worker is None or worker.partitions != tuple(partitions):
            if worker is not None:
                worker.close()
            worker = self._workers[task] = TaskWorker(
                self.application, task, partitions, self._log, resources=self.resources, task_count=task_count
            )
        return worker

    def in_place(self) -> AbstractContextManager[None]:
        """Make the program's own modules those of the shipped copy meanwhile, if one runs."""
        return nullcontext() if self._copy is None else self._copy.in_place()

    def update_globals(self) -> None:
        """Read the global stores on to the ends of their topics."""
        with self.in_place():
            self.resources.update_globals(self.application, self._log, {}, self.resources.now_ms())

    def global_metrics(self) -> Mapping[str, NodeMetrics]:
        """Return the counters of the nodes that fill global stores."""
        return self.resources.globals_of(self.application).metrics()

    def changes(self) -> list[str]:
        """Return the program's changes in its shipped copy outside stores."""
        return [] if self._copy is None else self._copy.changes()

    def let(self, change: Callable[[Sequence[Any]], object]) -> None:
        """Let `change` change the classes and functions of the shipped copy, if one runs."""
        if self._copy is not None:
            self._copy.let(change)

    def outside(self) -> dict[str, object]:
        """Return the values that `changes` compares, in a form that two processes can be compared by."""
        return {} if self._copy is None else self._copy.values()

    def close(self) -> None:
        """Close every task, and their shared resources."""
        with self.in_place():
            for worker in self._workers.values():
                worker.close()
            self.resources.close_globals(self.application)


class _Resources(ProcessResources):
    """The ProcessResources of a host of the test driver, with its own directory, and without real waiting."""

    def __init__(self, clock: Clock, host: Path, repeats: Repeats, calls: Calls, sinks: Targets) -> None:
        super().__init__(World(clock=clock, sleep=lambda seconds: None, calls=calls, sink=sinks))
        self.repeats = repeats
        self._host = host

    def task_directory(self, application: Application, task_id: str) -> Path:
        return self._host / application.id / task_id


_DEPTH, _MOST = 3, 1_000
"""How deep the parts of a value are compared, and up to how many elements of a container."""


class ShippedCopy:
    """A copy of an application with classes, functions and globals of its own, as a new process gets it.

    Raises ConfigError, naming the part, for an application whose bytes cannot be read.
    """

    def __init__(self, application: Application, packed: bytes) -> None:
        try:
            arrived = Arrived(packed, is_apart=True)
        except Exception as error:
            raise cannot_arrive(application, error) from error
        self.application: Application = arrived.cargo
        self.in_place = arrived.in_place
        self._made = arrived.made
        self._before = self._state()

    def changes(self) -> list[str]:
        """Return a sentence for each changed value of the shipped functions and classes."""
        now = self._state()
        return [
            f"{where}: {name!r} was changed while tasks ran"
            for (where, name), (parts, _) in now.items()
            if not _same(parts, self._before.get((where, name), ((), None))[0])
        ]

    def values(self) -> dict[str, object]:
        """Return the values of functions and classes by name, in a form that two copies can be compared by."""
        return {
            f"{where}: {name!r}": [_plain(part) for part in parts]
            for (where, name), (parts, _) in self._state().items()
        }

    def let(self, change: Callable[[Sequence[Any]], object]) -> None:
        """Let `change` change the classes and functions that came along."""
        change(self._made)
        self._before = self._state()

    def _state(self) -> dict[tuple[str, str], tuple[tuple[Any, ...], Any]]:
        return {
            (where, name): (tuple(_parts(value, _DEPTH)), value)
            for where, names in self._namespaces()
            for name, value in names.items()
            if not name.startswith("__")
        }

    def _namespaces(self) -> Iterator[tuple[str, dict[str, Any]]]:
        seen: set[int] = set()
        for made in self._made:
            if isinstance(made, type):
                yield f"class {made.__qualname__}", dict(vars(made))
                continue
            if id(made.__globals__) not in seen:
                seen.add(id(made.__globals__))
                yield f"module {made.__module__}", made.__globals__
            code = made.__code__
            where = f"function {made.__qualname__} ({code.co_filename}, line {code.co_firstlineno})"
            yield where, dict(zip(code.co_freevars, map(_content, made.__closure__ or ()), strict=False))
            if made.__defaults__:
                arguments = code.co_varnames[: code.co_argcount]
                yield where, dict(zip(reversed(arguments), reversed(made.__defaults__), strict=False))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _parts(value: Any, depth: int) -> Iterator[Any]:
    """Yield a value and its parts; the same objects come in the same order while nothing is changed."""
    yield value
    if (
        depth == 0
        or isinstance(value, type | FunctionType | ModuleType)
        or type(value).__module__.startswith("penstock")
    ):
        return
    if isinstance(value, dict):
        inside = [*value, *value.values()]
    elif isinstance(value, list | set | deque):
        inside = list(value)
    elif isinstance(value, bytearray):
        inside = [bytes(value)]
    else:
        attributes = getattr(value, "__dict__", None)
        inside = list(attributes.values()) if isinstance(attributes, dict) else []
    yield len(inside)
    for each in inside[:_MOST]:
        yield from _parts(each, depth - 1)


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(
        a is b or (type(a) is type(b) and type(a) in (int, bytes) and a == b) for a, b in zip(one, other, strict=True)
    )


def _plain(part: Any) -> object:
    return part if isinstance(part, int | float | str | bytes | None) else type(part).__name__


_READS = ("get", "fetch", "fetch_session")
"""The methods of stores that return one value."""


@dataclass
class Misuse:
    """What processors did, a sentence for each node.

    `changed_values`: values of records changed in place. `not_put`: values of stores changed and not put, which may be
    meant. `elsewhere`: records forwarded in another thread than `thread`, which runs tasks.
    """

    changed_values: list[str] = field(default_factory=list)
    not_put: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    thread: int = 0


class FindsMisuse:
    """A `processor_wrapper` that adds found mistakes to `found`.

    `inner` is the wrapper of the application itself. Operators are left alone: what the functions of the DSL's verbs
    get is theirs.
    """

    def __init__(self, inner: ProcessorWrapper | None, found: Misuse) -> None:
        self._inner = inner
        self._found = found

    @classmethod
    def in_application(cls, application: Application, found: Misuse) -> Application:
        """Return a copy of an application whose processors are wrapped, too."""
        made, settings = copy(application), copy(application.settings)
        object.__setattr__(settings, "processor_wrapper", cls(settings.processor_wrapper, found))
        made.settings = settings
        return made

    def __call__(self, node: str, made: Any) -> Any:
        """Return the processor of a node, wrapped."""
        if self._inner is not None:
            made = self._inner(node, made)
        if isinstance(made, Processor) and not made.takes_tuples:
            return _Watched(node, made, self._found)
        return _WatchedTransformer(node, made, self._found) if isinstance(made, ValueTransformer) else made


class _Watched(WrappingProcessor):
    def __init__(self, node: str, inner: Processor, found: Misuse) -> None:
        super().__init__(inner)
        self.forwards_each = inner.forwards_each
        self._node, self._found = node, found
        self._reads = _Reads(node, found)

    def bind(self, context: ProcessorContext) -> Callable[[Record], Any]:
        self._reads.watch(context)
        forward = context.forward

        def forward_here(record: Record, to: str | None = None) -> None:
            if get_ident() != self._found.thread:
                self._found.elsewhere.append(
                    f"node {self._node!r} forwards a record in another thread than the one that runs its task: it "
                    "would be part of any commit, or of none. Wait for what other threads compute, in process or in a "
                    "punctuator, and forward there"
                )
                raise TopologyError(self._found.elsewhere[-1])
            forward(record, to)

        forward_here.__qualname__ = "forward"  # its name in Python's own errors
        context.forward = forward_here  # type: ignore[method-assign]
        return super().bind(context)

    def process(self, record: Record) -> None:
        value = record[1]
        before = _copy_to_compare(value)
        super().process(record)
        _note_change(self._node, before, value, self._found.changed_values)
        self._reads.end()


class _WatchedTransformer(WrappingTransformer):
    def __init__(self, node: str, inner: ValueTransformer, found: Misuse) -> None:
        super().__init__(inner)
        self._node, self._found = node, found
        self._reads = _Reads(node, found)

    def init(self, context: ValueTransformerContext) -> None:
        self._reads.watch(context)
        super().init(context)

    def transform(self, key: Any, value: Any) -> Any:
        before = _copy_to_compare(value)
        made = super().transform(key, value)
        _note_change(self._node, before, value, self._found.changed_values)
        self._reads.end()
        return made


class _Reads:
    """The values that a node has read from stores while it processes a record, and has not written since."""

    def __init__(self, node: str, found: Misuse) -> None:
        self._node, self._found = node, found
        self._values: dict[str, list[tuple[Any, Any]]] = {}
        """By store: a copy, and the value itself."""

    def watch(self, context: ValueTransformerContext) -> None:
        get_store = context.get_store
        context.get_store = lambda name: _WatchedStore(get_store(name), name, self)  # type: ignore[method-assign]

    def note(self, store: str, value: Any) -> None:
        if (before := _copy_to_compare(value)) is not None:
            self._values.setdefault(store, []).append((before, value))

    def forget(self, store: str) -> None:
        """Forget a store's results: a write may have changed them."""
        self._values.pop(store, None)

    def end(self) -> None:
        for store, values in self._values.items():
            said = (
                f"node {self._node!r} changes a value that store {store!r} returned, and does not put it: the store "
                "keeps what it had. Put the changed value, or change a copy"
            )
            if said not in self._found.not_put and not all(_are_equal(*value) for value in values):
                self._found.not_put.append(said)
                _log.warning("%s", said)
        self._values.clear()


class _WatchedStore:
    def __init__(self, store: Any, name: str, reads: _Reads) -> None:
        self._store, self._name, self._reads = store, name, reads

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._store)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*given: Any, **options: Any) -> Any:
            if name not in _READS:
                self._reads.forget(self._name)
            value = found(*given, **options)
            if name in _READS:
                self._reads.note(self._name, value)
            return value

        return call


def _copy_to_compare(value: Any) -> Any:
    """Return a copy that is equal as long as the value stays; None where there is no such copy."""
    if type(value) in IMMUTABLE:
        return None
    before = own_copy(value)
    return before if before is not value and _are_equal(before, value) else None


def _note_change(node: str, before: Any, value: Any, found: list[str]) -> None:
    if before is None or _are_equal(before, value):
        return
    said = (
        f"node {node!r} changes the value that it got in place. Its siblings have copies, but a wrapper around it has "
        "the same object, and so has a test that calls it: forward a new value, record.with_value(...)"
    )
    if said not in found:
        found.append(said)


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # of arrays, for instance; what cannot be compared is not said to have changed
        return True
