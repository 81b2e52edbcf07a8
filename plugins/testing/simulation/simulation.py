"""Simulation: one history of a program on hosts that die, freeze and lose tasks, and what has to be true after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from penstock import (
    Application,
    ConfigError,
    Record,
    SourceNode,
    TopicPartition,
    Topology,
    TopologyBuilder,
)
from penstock.plugins.applications.preparation import prepare
from penstock.plugins.changelogs.memory import MemoryChangelog
from penstock.plugins.runtime.temporary import TemporaryDirectory
from penstock.stores.memory import MemoryBackend

from ..piping import serialized
from ..topic_reader import TopicReader, named_topics
from .cluster import Cluster
from .disk import CHANGELOG, Disk
from .failure import SimulationFailure
from .faults import Faults
from .host_files import HostFiles
from .host_world import HostWorld
from .leftovers import left_for_ever
from .log import SimulatedLog
from .rows import compare_rows, rows_of
from .timeline import Timeline

STEPS = 160
"""The most steps of a history in which faults strike, where nothing else is said."""
_COMMIT_INTERVALS = ("100ms", "20ms", "0ms", "1s")
_SIZES = {"chunk": (64, 1_000_000), "segment": (1, 400, 1_000_000), "snapshot_floor": (1, 10_000, 30_000, 1_000_000)}
"""Of the changelog in a directory: so small that it writes snapshots and cleans in a history of some commits."""
_GRACES = ("0ms", "1s", "1m", "1h")
_QUIET_ROUNDS, _MOST_ROUNDS = 16, 2_000
"""After faults end: rounds without any progress that are the end, and rounds after which there is none."""
_PASSES = (0.001, 0.005, 0.02, 0.05, 0.1, 0.3, 1.0, 70.0)
"""Seconds that may pass at once."""


class Simulation:
    """One history of a program over records, by the choices of `random`. Use it once, and close it.

    `records`: of each source topic. They arrive during the history, or before it where the program reads several
    topics: its answers may depend on which record is there first. `mode` is "batches" or "continuous". Every topic has
    `partitions` partitions; `hosts` machines run the tasks. `settings` override the application's; without
    `commit_interval` it is a random one. Stores that name no backend are in memory, and stay when a host dies: a
    machine's disk. `changelog` is "topic:", "memory:", "directory:" or
    "directory:s3://BUCKET", an object store. `steps`: the most steps of the history in which
    faults strike. `directory`: where it may make directories, which stay; None: in a temporary one.
    """

    def __init__(
        self,
        program: Topology | TopologyBuilder | Application,
        records: Mapping[str, Sequence[Record]],
        random: Random,
        *,
        mode: str = "continuous",
        partitions: int = 2,
        hosts: int = 2,
        steps: int = STEPS,
        directory: Path | None = None,
        **settings: Any,
    ) -> None:
        if mode not in ("batches", "continuous"):
            raise ConfigError(f'mode of a simulation: expected "batches" or "continuous", found {mode!r}')
        self._random = random
        self._steps = steps
        self._partitions = partitions
        self._timeline = Timeline()
        self._disk = Disk(self._timeline, random)
        self._outside = HostWorld(self._timeline, HostFiles(self._disk, -1, lambda what, call, *_: call()))
        self._disk.make_directory(-1, CHANGELOG)
        self._log = SimulatedLog(self._outside.world)
        self._temporary = None if directory is not None else TemporaryDirectory("simulation")
        self._directory = directory or (self._temporary.path if self._temporary is not None else Path())
        try:
            application = self._made(program, settings)
            self._topics = _outside_topics(application)
            for topic in self._topics:
                self._log.create_topic(topic, partitions)
            prepared = prepare(application, self._log)
            self._application, self._tasks = prepared.application, prepared.tasks()
            self._waiting = [(topic, record) for topic, of_topic in records.items() for record in of_topic]
            self._faults = Faults(random, self._timeline, self._step, lambda machine: self._cluster.power_off(machine))
            self._cluster = Cluster(
                self._application, self._tasks, self._log, self._disk, self._timeline, random, self._faults.edge,
                self._faults.disk_edge, mode=mode, machines=hosts, directory=self._directory,
            )  # fmt: skip
        except BaseException:
            self._forget()
            raise

    def _made(self, program: Topology | TopologyBuilder | Application, settings: Mapping[str, Any]) -> Application:
        interval = self._random.choice(_COMMIT_INTERVALS)
        given = {"store_backend": "memory", "commit_interval": interval, "changelog": "topic:", **settings}
        if given["changelog"] == "memory:":
            given["changelog"] = f"memory:{self._directory}"
        name, _, place = given["changelog"].partition(":")
        if name == "directory":
            sizes = "&".join(f"{name}_bytes={self._random.choice(some)}" for name, some in _SIZES.items())
            given["changelog"] = f"directory:{place or CHANGELOG}{'&' if '?' in place else '?'}{sizes}"
            given = {"changelog_grace": self._random.choice(_GRACES), **given}
        given |= {"log": "memory:", "data_dir": str(self._directory)}
        if isinstance(program, Application):
            return program.with_settings(**given)
        return Application("simulated", program, **given)

    @property
    def story(self) -> list[str]:
        """A line for each event of the history."""
        return self._timeline.story

    @property
    def faults(self) -> Mapping[str, int]:
        """How often each fault struck, by what it is and where."""
        return self._faults.counts

    def outputs(self) -> dict[str, list[Record]]:
        """Return the records of each output topic, by partition, as they were produced."""
        reader = TopicReader(self._application, self._log)
        program = self._application.program
        names = sorted(set(self._topics) - set(program.topics()))
        return {name: list(reader.unread(name, None, None)) for name in names}

    def sent(self, topic: str) -> list[list[Record]]:
        """Return the records of a source topic, by partition, as its source reads them."""
        source = self._source(topic)
        reader = TopicReader(self._application, self._log)
        return [list(each) for each in reader.by_partition(topic, source.key_serde, source.value_serde)]

    def _source(self, topic: str) -> SourceNode:
        nodes = self._application.program.nodes.values()
        return next(node for node in nodes if isinstance(node, SourceNode) and topic in node.topics)

    # ------------------------------------------------------------------ the history

    def run(self) -> None:
        """Run the history; then no fault strikes, and everything has to be processed. Raises SimulationFailure."""
        self._timeline.on_passing = self._cluster.tick
        try:
            if len({topic for topic, _ in self._waiting}) > 1:
                self._arrive(len(self._waiting))
            self._cluster.begin()
            self._faults.strike = True
            for _ in range(self._random.randrange(self._steps)):
                self._step()
            self._faults.strike = False
            self._timeline.tell("faults end")
            self._finish()
            self._check_state()
        except SimulationFailure:
            raise
        except Exception as error:
            raise SimulationFailure(f"{type(error).__name__}: {error}", self.story) from error

    def close(self) -> None:
        """Release everything; idempotent."""
        self._timeline.on_passing = lambda: None
        for host in list(self._cluster.hosts):
            self._cluster.end(host)
        self._forget()

    def _forget(self) -> None:
        MemoryBackend.forget(self._directory)
        MemoryChangelog.forget(str(self._directory))
        if self._temporary is not None:
            self._temporary.close()

    def _step(self) -> None:
        """Let one thing happen. What is first in the list is least of a fault, so that histories shrink to it."""
        cluster, steps = self._cluster, list[Callable[[], None]]()
        for host in cluster.live():
            steps += [lambda host=host: cluster.let(host, host.work)] * 3  # type: ignore[misc]
            if host.world.calls:
                steps += [lambda host=host: cluster.run_call(host)] * 3  # type: ignore[misc]
        if self._waiting:
            steps += [lambda: self._arrive(1 + self._random.randrange(3))] * 3
        steps += [lambda: self._timeline.pass_by(self._random.choice(_PASSES))] * 2
        if self._log.has_open:
            steps += [self._write_markers] * 2
        if not cluster.is_complete:
            steps += [cluster.start_anywhere] * 2
        steps += [cluster.give_orphans, lambda: self._log.maintain(self._timeline.now_ms())]
        if cluster.live():
            steps += [cluster.give_any]
        if self._disk.files():
            steps += [cluster.power_off_any]
        self._random.choice(steps)()
        if self._faults.failure is not None:
            raise self._faults.failure
        self._check_positions()

    def _arrive(self, count: int) -> None:
        arriving, self._waiting = self._waiting[:count], self._waiting[count:]
        for topic, record in arriving:
            settings, now_ms = self._application.settings, self._timeline.now_ms()
            source = self._source(topic)
            self._log.append(serialized(topic, source, settings, [record], None, self._partitions, now_ms))
            self._timeline.tell(f"a record arrives in {topic}: {record.key!r}, {record.value!r}")

    def _write_markers(self) -> None:
        self._log.write_markers()
        self._timeline.tell("the last commits can be read")

    # ------------------------------------------------------------------ the end

    def _finish(self) -> None:
        """Run what is left, until nothing has come for a while."""
        self._arrive(len(self._waiting))
        cluster, quiet = self._cluster, 0
        for _ in range(_MOST_ROUNDS):
            before = self._progress()
            cluster.complete()
            for host in cluster.live():
                cluster.let(host, host.work)
                while host.world.calls:
                    cluster.run_call(host)
            self._log.write_markers()
            self._check_positions()
            quiet = 0 if self._progress() != before else quiet + 1
            self._timeline.pass_by(0.1 if quiet < _QUIET_ROUNDS // 2 else 30.0)
            if quiet == _QUIET_ROUNDS:
                self._check_read()
                return
        raise SimulationFailure("it never comes to rest, though no fault strikes any more", self.story)

    def _progress(self) -> object:
        topics = self._log.topics().items()
        partitions = [TopicPartition(name, number) for name, info in topics for number in range(info.partitions)]
        return self._log.end_offsets(partitions, stable=False), self._positions()

    def _positions(self) -> Mapping[TopicPartition, int | None]:
        inputs = [each for partitions in self._tasks.values() for each in partitions]
        return self._log.committed(self._application.id, inputs)

    def _check_positions(self) -> None:
        if self._log.went_back:
            raise SimulationFailure(self._log.went_back[0], self.story)

    def _check_read(self) -> None:
        positions = self._positions()
        ends = self._log.end_offsets(list(positions))
        for partition, position in positions.items():
            if position is None or position < ends[partition]:
                read = f"{partition} is read up to {position or 0} of {ends[partition]} only"
                raise SimulationFailure(f"no fault strikes any more, and {read}", self.story)

    def _check_state(self) -> None:
        """Compare each task's stores on the host that had it last with those restored from the changelog alone."""
        for host in self._cluster.live():
            self._cluster.let(host, lambda host=host: host.close(commit=True))  # type: ignore[misc]
        self._log.write_markers()
        for machine in range(self._cluster.machines):  # what counts does not go with them
            self._disk.lose(machine)
        fresh = self._application.with_settings(state_dir=str(self._directory / "fresh"))
        for task, partitions in self._tasks.items():
            last = self._cluster.owners[task].application
            there, here = (rows_of(each, task, partitions, self._log, self._outside) for each in (fresh, last))
            compare_rows(self._application, task, here, there, self.story)
            self._check_files(task, partitions)

    def _check_files(self, task: str, partitions: Sequence[TopicPartition]) -> None:
        if self._disk.files():
            with closing(self._log.open_committer(self._application.id, task, partitions)) as committer:
                last = committer.committed
            assert last is not None
            left = left_for_ever(self._application, task, last.version, self._disk, self._outside)
            if left:
                raise SimulationFailure(f"files that nobody needs are left for ever: {', '.join(left)}", self.story)


def simulate(
    program: Topology | TopologyBuilder | Application,
    records: Mapping[str, Sequence[Record]],
    random: Random,
    **options: Any,
) -> tuple[dict[str, list[Record]], list[str]]:
    """Run one history; return the outputs by topic, and the story. `options` are those of `Simulation`.

    Raises SimulationFailure.
    """
    simulation = Simulation(program, records, random, **options)
    try:
        simulation.run()
        return simulation.outputs(), simulation.story
    finally:
        simulation.close()


def _outside_topics(application: Application) -> list[str]:
    """Return the topics of a program that are not its own. Raises ConfigError if functions or patterns choose some."""
    named = named_topics(application)
    if named is None:
        raise ConfigError("a simulation needs a program that names its topics; here a function or pattern chooses some")
    internal = application.program.internal_topics
    return [topic for topic in named if topic not in internal and not topic.startswith(f"{application.id}-")]
