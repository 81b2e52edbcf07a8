"""SimulatedCluster: a program on simulated hosts, which a test or a history lets work, crash, freeze and lose tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from typing import Any

from penstock import (
    Application,
    ConfigError,
    Duration,
    Headers,
    Record,
    SourceNode,
    TopicPartition,
    Topology,
    TopologyBuilder,
    UnknownTopicError,
    duration_ms,
)
from penstock.plugins.changelogs.memory import MemoryChangelog
from penstock.plugins.engine.program.preparation import Prepared, prepare
from penstock.plugins.engine.program.stored_id import stored_application
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.program.checks import nearest
from penstock.stores.memory import MemoryBackend

from ..topics import ReadsTopics, TopicReader, find_source, named_topics, serialized
from .checks import Checks
from .cluster import Cluster
from .disk import CHANGELOG, Disk, HostFiles
from .faults import Faults
from .history import Fault
from .host import Host
from .host_world import BEGINNING_MS, HostWorld, SimulationFailure, Timeline
from .log import SimulatedLog

_OPERATION_NAMES = ("commit", "take", "fetch", "ask")


class SimulatedCluster(ReadsTopics):
    """A program on `hosts` simulated hosts, numbered from 1, each on a machine of its own; nothing happens by itself.

    `mode` is "continuous" or "batches". Every topic has `partitions` partitions. `settings` override the
    application's. Stores that name no backend are in memory, and stay when a host dies: a machine's disk. `changelog`
    is "topic:", "memory:", "directory:" for one on a simulated disk that all machines share, or
    "directory:s3://BUCKET" for a simulated object store; `dice` chooses what a machine that goes down had synced.
    `replicas`: every copy of a task's stores is compared with others of its version, and `follow` has replicas.
    `standbys`: the same, and `stand_by` has standbys.
    `topics`: settings of topics, by name, such as {"out": {"max.message.bytes": "1000"}}; all topics have to be there
    where functions or patterns choose some. `initial_wall_clock_ms`: the time of the beginning.
    `directory`: where it may make directories, which stay; None: a temporary one.

    `before` and `after` name an operation of a host on the log: "commit", "take" (the fence of a task), "fetch", or
    "ask" (for positions, offsets or its fence). What lets a host work raises SimulationFailure for an error that no
    fault explains. Needs greenlet (`pip install 'penstock-streams[testing]'`).

    >>> from penstock import Topology, ValueTransformer
    >>> class Double(ValueTransformer):
    ...     def transform(self, key, value):
    ...         return 2 * value
    >>> topology = Topology().add_source("in", "numbers", value_serde="int").add_processor("double", Double, "in")
    >>> topology = topology.add_sink("out", "doubled", "double", value_serde="int")
    >>> with SimulatedCluster(topology, partitions=1) as cluster:
    ...     cluster.pipe("numbers", "k", 4)
    ...     cluster.freeze(1, before="commit")
    ...     cluster.work()
    ...     cluster.move("0_0", 2)
    ...     cluster.work()
    ...     cluster.wake(1)
    ...     cluster.settle()
    ...     cluster.read_values("doubled")
    [8]
    """

    def __init__(
        self,
        program: Topology | TopologyBuilder | Application,
        *,
        mode: str = "continuous",
        hosts: int = 2,
        partitions: int = 2,
        dice: int = 0,
        directory: Path | None = None,
        topics: Mapping[str, Mapping[str, str]] | None = None,
        replicas: bool = False,
        standbys: bool = False,
        initial_wall_clock_ms: int = BEGINNING_MS,
        **settings: Any,
    ) -> None:
        check_options(mode, hosts, partitions)
        self._partitions = partitions
        self._topic_settings = topics or {}
        self._timeline = Timeline(initial_wall_clock_ms)
        self.story = self._timeline.story
        """A line for each thing that happened."""
        self._disk = Disk(self._timeline, Random(dice))
        self._outside = HostWorld(self._timeline, HostFiles(self._disk, -1, lambda what, call, *_: call()))
        self._disk.make_directory(-1, CHANGELOG)
        self._log = SimulatedLog(self._outside.world)
        self._temporary = None if directory is not None else TemporaryDirectory("simulation")
        self._directory = directory or (self._temporary.path if self._temporary is not None else Path())
        self._faults = Faults(self._timeline)
        try:
            self._settings = settings
            prepared = self._prepared(program)
            self.application = prepared.application
            self._outputs = TopicReader(self.application, self._log)
            self._cluster = Cluster(
                prepared, self._log, self._disk, self._timeline, self._faults, mode=mode, machines=hosts,
                directory=self._directory, has_replicas=replicas, has_standbys=standbys,
            )  # fmt: skip
            self._checks = Checks(self._cluster, self._log, self._disk, self._outside, self._timeline, self._directory)
            self._timeline.on_passing = self._cluster.tick
            self._cluster.begin()
        except BaseException:
            self._forget()
            raise

    def _prepared(self, program: Topology | TopologyBuilder | Application) -> Prepared:
        application = self._made = simulated(program, self._settings, self._directory)
        self._log.sends_at_once = application.settings.processing_guarantee == "at_least_once"
        self._topics = outside_topics(application, self._topic_settings)
        for topic in self._topics:
            if topic not in self._log.topics():
                self._log.create_topic(topic, self._partitions, self._topic_settings.get(topic))
        prepared = prepare(stored_application(application, self._log), self._log)
        self._committed = prepared.committed
        return prepared

    def close(self) -> None:
        self._timeline.on_passing = lambda: None
        for host in self._cluster.processes():
            self._cluster.end(host)
        self._forget()

    def _forget(self) -> None:
        MemoryBackend.forget(self._directory)
        MemoryChangelog.forget(str(self._directory))
        if self._temporary is not None:
            self._temporary.close()

    # ------------------------------------------------------------------ what there is

    def failure(self, what: str) -> SimulationFailure:
        """Return the failure of the history up to now."""
        return self._timeline.failure(what)

    @property
    def hosts(self) -> list[int]:
        """The hosts that have not died; some may be frozen."""
        return [host.number for host in self._cluster.hosts]

    @property
    def owners(self) -> dict[str, int]:
        """By task, such as "0_1", the host that it was given to last, which may have died."""
        return {task: host.number for task, host in self._cluster.owners.items()}

    # ------------------------------------------------------------------ records and time

    def pipe(
        self,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int | None = None,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> None:
        """Let one record arrive in a source topic; no host works.

        Key and value are serialized as the source that reads `topic` will read them. `timestamp` is in ms (None: the
        simulated time); `partition` None: by key. Raises UnknownTopicError when no source reads the topic.
        """
        source, settings, now_ms = self._source(topic), self.application.settings, self._timeline.now_ms()
        record = key, value, now_ms if timestamp is None else timestamp, headers
        self._log.append(serialized(topic, source, settings, [record], partition, self._partitions, now_ms))
        self._timeline.tell(f"a record arrives in {topic}: {key!r}, {value!r}", is_event=True)

    def _source(self, topic: str) -> SourceNode:
        if (source := find_source(self.application, topic)) is not None:
            return source
        raise UnknownTopicError(
            f"no source reads topic {topic!r}{nearest(topic, list(self.application.program.topics()))}"
        )

    def advance(self, duration: Duration) -> None:
        """Let time pass, on all hosts."""
        if (milliseconds := duration_ms(duration, "advance", may_be_negative=True)) < 0:
            raise ConfigError("advance: time does not go back")
        self._timeline.pass_by(milliseconds / 1000)
        self._timeline.tell(f"{milliseconds / 1000:g} s have passed", is_event=True)

    @property
    def now_ms(self) -> int:
        """The simulated time (ms)."""
        return self._timeline.now_ms()

    def outputs(self) -> dict[str, list[Record]]:
        """Return the records of each output topic, by partition, as they were produced."""
        return self._outputs_from({})

    def _outputs_from(self, starts: Mapping[TopicPartition, int]) -> dict[str, list[Record]]:
        reader = TopicReader(self.application, self._log, starts)
        names = sorted(set(self._topics) - set(self.application.program.topics()))
        return {name: list(reader.unread(name)) for name in names}

    # ------------------------------------------------------------------ hosts

    def work(self, host: int | None = None) -> None:
        """Let a host and its threads work until they have nothing to do; None: all hosts, one after the other.

        What they have committed can be read then.
        """
        for each in self._cluster.live() if host is None else [self._live(host)]:
            self._timeline.begin_step()
            self._cluster.work_on(each)
        self._log.write_markers()
        self._timeline.end_steps()

    def power_off(self, machine: int) -> None:
        """Let a machine (from 1 on) go down: its hosts die; what they have not synced to the shared disk is lost."""
        self._cluster.power_off(self._machine(machine))

    def start(self, machine: int) -> int:
        """Start one more host on a machine (from 1 on), over the local state there; return its number."""
        return self._cluster.start(self._machine(machine)).number

    def _machine(self, number: int) -> int:
        """Begin a step of a machine; return its number from 0 on."""
        if not 1 <= number <= self._cluster.machines:
            raise ConfigError(f"machine {number}: expected 1 to {self._cluster.machines}")
        self._timeline.begin_step()
        return number - 1

    def deploy(self, program: Topology | TopologyBuilder | Application) -> None:
        """End the hosts that live, each with its last commit, and start as many with another program.

        A host that is frozen wakes with the program and the tasks that it had. Raises as `run` for a program that does
        not fit what was saved.
        """
        self._timeline.tell("another program is deployed", is_event=True)
        prepared = self._prepared(program)
        self.application = prepared.application
        self._cluster.stop()
        self._cluster.restart(prepared)

    def purge(self, *, also_sources: bool = False) -> None:
        """Delete records of internal topics that tasks have reported to need no more, as a driver does.

        `also_sources`: also records of source topics that were read, as retention does.
        """
        purged: dict[TopicPartition, int] = {}
        ids = {name: info.id for name, info in self._log.topics().items()}
        for host in self._cluster.live():
            of_same_topics = {name for name, topic_id in ids.items() if host.topic_ids.get(name) == topic_id}
            purged |= {each: at for each, at in host.purgeable.items() if each.topic in of_same_topics}
        if also_sources:
            read = self._checks.positions()
            purged.update({each: at for each, at in read.items() if at is not None and each.topic in self._topics})
        starts = self._log.start_offsets(list(purged))
        for partition, position in purged.items():
            if position > starts[partition]:
                self._log.purge(partition, position, ids[partition.topic])
                self._timeline.tell(f"the records of {partition} before {position} are deleted")

    def move(self, task: str, host: int) -> None:
        """Give a task to a host. The host that had it is not told, as if it were frozen or cut off."""
        if task not in self._cluster.tasks:
            raise ConfigError(f"task {task!r}: expected one of {', '.join(self._cluster.tasks)}")
        to = self._live(host)
        if to not in self._cluster.of_this_program():
            raise ConfigError(f"host {host} runs the program that was there before `deploy`: it gets no more tasks")
        self._timeline.begin_step()
        self._cluster.give(task, to)

    def crash(self, host: int, *, before: str | None = None, after: str | None = None) -> None:
        """Let a host die, now or at its next operation of this name."""
        if before is None and after is None:
            self._cluster.kill(self._host(host), is_event=True)
        else:
            self._arm("dies", host, before, after)

    def freeze(self, host: int, *, before: str | None = None, after: str | None = None) -> None:
        """Let a host stop at its next operation (of this name) until `wake`; it loses its tasks only by `move`."""
        self._arm("freezes", host, before, after)

    def wake(self, host: int) -> None:
        """Let a frozen host finish its interrupted work."""
        found = self._host(host)
        if not found.is_frozen:
            raise ConfigError(f"host {host} is not frozen: `freeze` names the operation at which it stops")
        self._timeline.begin_step()
        self._cluster.wake(found)

    def cut_off(self, host: int, *, before: str | None = None, after: str | None = None) -> None:
        """Let the log be away at a host's next operation (of this name), for so long that it gives up.

        After it: the log has done it, and the host does not know. What it fails in ends: the run of the host, or an
        opening or a commit of one task.
        """
        self._arm("loses the log", host, before, after)

    def _arm(self, kind: str, host: int, before: str | None, after: str | None) -> None:
        if before is not None and after is not None:
            raise ConfigError("before, after: expected one of them")
        operation = before or after or ""
        if operation and operation not in _OPERATION_NAMES:
            known = ", ".join(map(repr, _OPERATION_NAMES))
            raise ConfigError(f"operation of a simulated host: expected one of {known}, found {operation!r}")
        self._faults.arm(self._live(host), Fault(kind, operation, after is not None))

    def _host(self, number: int) -> Host:
        for host in self._cluster.hosts:
            if host.number == number:
                return host
        there = ", ".join(map(str, self.hosts)) or "none"
        raise ConfigError(f"host {number}: expected a host that has not died ({there}); `start` starts another one")

    def _live(self, number: int) -> Host:
        host = self._host(number)
        if host.is_frozen:
            raise ConfigError(f"host {number} is frozen: `wake` it first")
        return host

    # ------------------------------------------------------------------ the end

    def settle(self) -> None:
        """Let everything be processed: hosts start where some are missing, and take tasks that have no host.

        Hosts that are frozen wake when the others have nothing left to do, one by one. Raises SimulationFailure if
        records are never processed or positions go back, and ConfigError if a fault was to strike and did not.
        """
        for armed, fault in self._faults.disarm().items():
            if not armed.is_dead:
                raise ConfigError(
                    f"{armed} never came to {fault.operation!r}, where it {fault.kind}: let it `work` before `settle`"
                )
        self._timeline.end_steps()
        self._checks.settle()

    def follow(self, machine: int) -> None:
        """Let the replicas on a machine (from 1 on) go on to the last commits; start them where there are none."""
        if not self._cluster.has_replicas:
            raise ConfigError("follow: this simulation has no replicas: make it with replicas=True")
        self._cluster.follow(self._machine(machine))

    def stand_by(self, machine: int) -> None:
        """Let the standbys on a machine (from 1 on) bring on their copies; start them where there are none."""
        if not self._cluster.has_standbys:
            raise ConfigError("stand_by: this simulation has no standbys: make it with standbys=True")
        self._cluster.stand_by(self._machine(machine))

    def check_positions(self) -> None:
        """Raise SimulationFailure if a commit has set a position back."""
        self._checks.positions_go_on()

    def check_state(self) -> None:
        """End all hosts; compare each task's stores on its last host with those restored from the changelog alone.

        With a changelog in files, all machines go down before, and no file may be left that no version needs. Raises
        SimulationFailure.
        """
        for host in self._cluster.everyone():
            self._cluster.let(host, lambda host=host: host.close(commit=True))  # type: ignore[misc]
        self._log.write_markers()
        self._checks.state()


def simulated(
    program: Topology | TopologyBuilder | Application, settings: Mapping[str, Any], directory: Path
) -> Application:
    """Return the application of a program on a simulated log; `settings` override its own."""
    given = {"store_backend": "memory", "commit_interval": "0ms", "changelog": "topic:", **settings}
    if given["changelog"] == "memory:":
        given["changelog"] = f"memory:{directory}"
    elif given["changelog"].startswith("directory:") and "://" not in given["changelog"]:
        given["changelog"] = given["changelog"].replace(":", f":{CHANGELOG}", 1)
    given |= {"log": "memory:", "data_dir": str(directory)}
    if isinstance(program, Application):
        return program.with_settings(**given)
    return Application("simulated", program, **given)


def check_options(mode: str, hosts: int, partitions: int) -> None:
    """Raise ConfigError for an option of a simulation that is none."""
    if mode not in ("batches", "continuous"):
        raise ConfigError(f'mode of a simulation: expected "batches" or "continuous", found {mode!r}')
    for what, number in (("hosts", hosts), ("partitions", partitions)):
        if type(number) is not int or number < 1:
            raise ConfigError(f"{what} of a simulation: expected a number from 1 on, found {number!r}")


def outside_topics(application: Application, given: Collection[str]) -> list[str]:
    """Return the topics outside an application, with `given`. Raises ConfigError if none are, and it names not all."""
    named = named_topics(application)
    if named is None and not given:
        raise ConfigError(
            "a simulation needs the names of all topics; here a function or pattern chooses some: give them in `topics`"
        )
    named = tuple(dict.fromkeys([*(named or application.program.sink_topics()), *given]))
    internal = application.program.internal_topics
    return [topic for topic in named if topic not in internal and not topic.startswith(f"{application.id}-")]
