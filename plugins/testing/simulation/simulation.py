"""Simulation: one history of a program on hosts that die, freeze and lose tasks, with checks after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from penstock import (
    Application,
    IncompatibleStateError,
    LeaseTakenError,
    Log,
    PenstockError,
    Record,
    TopicPartition,
    Topology,
    TopologyBuilder,
    World,
)
from penstock.plugins.engine.program import reset
from penstock.plugins.engine.program.preparation import check_program, prepare
from penstock.plugins.engine.program.stored_id import stored_application
from penstock.plugins.state.transfer import changelog_move

from ..topics import TopicReader
from .disk import DAMAGES, shown
from .faults import Place
from .history import Fault, History, Step
from .host import LEASE_SECONDS, Host
from .host_world import LATE, UPKEEP, HostWorld, SimulationFailure, described
from .log import TRANSACTION_SECONDS, HostLog
from .simulated_cluster import SimulatedCluster, simulated

_PASSES = (0.1, 0.001, 0.005, 0.02, 0.05, 0.3, 1.0, 70.0)
"""Seconds that may pass at once."""
_SIZES = {"chunk": (64, 1_000_000), "segment": (1, 400, 1_000_000), "snapshot_floor": (1, 10_000, 1, 1_000_000)}
"""Of the changelog in a directory: so small that it writes snapshots and cleans in a history of some commits."""
_GRACES = ("0ms", "1s", "1m", "1h")
_CLEANUP_DELAY = "2m"
_MOVED = "/moved"
"""The end of the name of a changelog's other place."""
_LIMITS = {"commit_bytes": (1, 2_000), "fetch_bytes": (1, 300), "input_buffer_max_bytes": (1, 400)}
"""Settings that a history may have, so small that few records reach them."""
_OPERATORS_POLICY = "latest"
"""The `offset_out_of_range` that an operator sets where tasks end because records are gone."""
_JUMPS_MS = (5_000, -5_000, 1, -1, 90_000, -90_000)
"""Maximum jumps of a host's clock."""
_FARTHEST_MS = 180_000
"""The most that the clock of a host is wrong: what is due by it has to come in the time that a settled cluster gets."""


class Simulation(SimulatedCluster):
    """A cluster to which a history happens, with records of each source topic. Use it once, and close it.

    Records arrive during the history, or before it where the program reads several topics: its answers may depend on
    which record is there first. `deployments`: programs that take the place of the first one, one after the other, in
    the middle; they give the same answers. `options` are those of `SimulatedCluster`; without `commit_interval` it is
    the history's.
    """

    def __init__(
        self,
        program: Topology | TopologyBuilder | Application,
        records: Mapping[str, Sequence[Record]],
        history: History,
        deployments: Sequence[Topology | TopologyBuilder | Application] = (),
        **options: Any,
    ) -> None:
        given = {"commit_interval": history.commit_interval, "state_cleanup_delay": _CLEANUP_DELAY, **options}
        limits = Random(~history.dice)
        given = {name: limits.choice(some) for name, some in _LIMITS.items() if not limits.randrange(8)} | given
        if is_on_disk(options):
            dice, place = Random(history.dice), options["changelog"]
            sizes = "&".join(f"{name}_bytes={dice.choice(some)}" for name, some in _SIZES.items())
            given["changelog"] = f"{place}{'&' if '?' in place else '?'}{sizes}"
            given = {"changelog_grace": dice.choice(_GRACES), **given}
        super().__init__(program, dice=history.dice, **given)
        self.faults: Mapping[str, int] = self._faults.counts
        """How often each fault struck, by kind and operation."""
        self.places: Mapping[Place, int] = self._faults.places
        """How often each operation of each step was done, and how often each fault struck there."""
        self._history = history
        self._program = program
        self._loses_records = "offset_out_of_range" in options
        """Whether source topics lose records that were not read."""
        self._programs = list(deployments)
        self._sent = TopicReader(self.application, self._log)
        self._waiting = [(topic, record) for topic, of_topic in records.items() for record in of_topic]
        self.arrived: dict[str, list[Record]] = {topic: [] for topic in records}
        """The records that arrived, by topic."""
        self.parts: dict[str, list[list[Record]]] = {topic: [] for topic in records}
        """The same as their sources read them, by topic and partition."""
        self.lives: list[dict[str, list[Record]]] = []
        """What was produced before each reset."""
        self._life_begins: Mapping[TopicPartition, int] = {}
        self._steps: Mapping[str, Callable[[Step], object]] = {
            "arrive": lambda step: self._arrive(1),
            "rest": self._rest,
            "work": lambda step: self._let(step, self._cluster.work),
            "call": lambda step: self._let(step, lambda host: self._run_call(host, step.amount)),
            "give": self._give,
            "strike": self._strike,
            "plan": lambda step: self._cluster.drive(),
            "follow": self._follow,
            "adopt": self._adopt,
            "wake": self._wake,
            "orphans": lambda step: self._cluster.give_orphans(),
            "start": self._start,
            "pass": lambda step: self._pass_by(_PASSES[step.amount % len(_PASSES)]),
            "jump": lambda step: self._let(step, lambda host: self._jump(host, step.amount)),
            "power": self._power_off,
            "deploy": lambda step: self._deploy(),
            # Retention would delete the content of a store that is filled from a source topic.
            "purge": lambda step: self.purge(also_sources=step.amount % 2 == 1 and len(self.arrived) == 1),
            "markers": lambda step: self._write_markers(),
            "maintain": lambda step: self._log.maintain(self._timeline.now_ms()),
            "lose": self._lose,
            "damage": self._damage,
            "stop": lambda step: self._stop_and_start(),
            "reset": self._reset,
            "move": self._move_changelog,
            TAKE_OVER: self._take_over,
        }

    @property
    def events(self) -> int:
        """How many events the history has had: steps that did something, and faults that struck."""
        return self._timeline.events

    def answers(self) -> Mapping[str, Mapping[str, list[Record]]]:
        """Return the answers, by topic, that have to be those of a run without faults; "" is the application's name."""
        return {"": self.outputs()}

    def run(self) -> None:
        """Run the history; then no fault strikes, and everything has to be processed. Raises SimulationFailure."""
        try:
            if len(self.arrived) > 1:
                self._arrive(len(self._waiting))
            for step in self._history.steps:
                self._timeline.begin_step()
                self._steps[step.kind](step)
                self.check_positions()
            if self._history.rest_arrives:
                self._arrive(len(self._waiting))
            self._timeline.end_steps()
            self._faults.disarm()
            self._disk.damaged.clear()
            self._timeline.tell("faults end")
            if self._log.lossy_topics and self._settings["offset_out_of_range"] == "fail":
                self._settings = {**self._settings, "offset_out_of_range": _OPERATORS_POLICY}
                self.deploy(self._program)
            self.settle()
            self.check_state()
        except SimulationFailure:
            raise
        except Exception as error:
            raise self.failure(described(error)) from error

    # ------------------------------------------------------------------ steps

    def _let(self, step: Step, act: Callable[[Host], object]) -> None:
        live = self._cluster.live()
        if live:
            act(live[step.host % len(live)])

    def _rest(self, step: Step) -> None:
        """Let a host do all that there is to do; its snapshots or its commits may be late."""
        self._let(step, lambda host: self._cluster.work_on(host, LATE[step.amount % len(LATE)]))

    def _strike(self, step: Step) -> None:
        everyone, fault = self._cluster.everyone(), step.fault or Fault("dies")
        if fault.step or fault.on_copy:
            self._faults.arm(None, fault)
        elif everyone:
            self._faults.arm(everyone[step.host % len(everyone)], fault)

    def _follow(self, step: Step) -> None:
        if self._cluster.has_replicas:
            self._cluster.follow(step.host % self._cluster.machines)
        elif self._cluster.has_standbys:
            self._cluster.stand_by(step.host % self._cluster.machines)

    def _adopt(self, step: Step) -> None:
        """Let a machine begin anew, with the replica of a task as the task's local state."""
        tasks = list(self._cluster.tasks)
        machine = step.host % self._cluster.machines
        if self._cluster.has_replicas:
            for host in self._cluster.processes():
                if host.machine == machine:
                    self._cluster.kill(host)
            self._cluster.adopt(tasks[step.amount % len(tasks)], machine)

    def _give(self, step: Step) -> None:
        hosts, tasks = self._cluster.of_this_program(), list(self._cluster.tasks)
        if hosts:
            self._cluster.give(tasks[step.amount % len(tasks)], hosts[step.host % len(hosts)])

    def _run_call(self, host: Host, number: int) -> None:
        if host.world.calls:
            self._cluster.run_call(host, number % len(host.world.calls))

    def _wake(self, step: Step) -> None:
        frozen = self._cluster.frozen()
        if frozen:
            self._cluster.wake(frozen[step.host % len(frozen)])

    def _start(self, step: Step) -> None:
        """Start a host on any machine, perhaps with an empty disk, or beside a host that is frozen there."""
        if self._cluster.is_complete:
            return
        machine = step.host % self._cluster.machines
        if step.amount % 4 == 3:
            self._cluster.replace_disk(machine)
        self._cluster.start(machine)
        self._cluster.give_orphans()

    def _power_off(self, step: Step) -> None:
        """Let any machine go down, or all of them."""
        machines, down = self._cluster.machines, step.amount % (self._cluster.machines + 1)
        for machine in range(machines) if down == machines else [down]:
            self._cluster.power_off(machine)

    def _deploy(self) -> None:
        if self._programs:
            self.deploy(self._programs.pop(0))

    def _lose(self, step: Step) -> None:
        """Let a source topic lose records, read or not: by retention, as a new topic, or one of its end."""
        if not self._loses_records:
            return
        topic = list(self.arrived)[step.amount // 4 % len(self.arrived)]
        partition = TopicPartition(topic, step.host % self._partitions)
        how = step.amount % 4
        if how == 0:
            self._log.make_again(topic)
            self._timeline.tell(f"topic {topic} is deleted and made again")
        elif how == 1:
            self._timeline.tell(f"{partition} loses its last record and ends at {self._log.lose_end(partition)}")
        else:
            start, end = (found([partition])[partition] for found in (self._log.start_offsets, self._log.end_offsets))
            before = start + (end - start + 1) // (how - 1)
            self._log.lose_start(partition, before)
            self._timeline.tell(f"the records of {partition} before {before} are deleted")

    def _damage(self, step: Step) -> None:
        """Damage a file of the changelog, or repair the damaged ones."""
        if self._disk.damaged:
            self._disk.damaged.clear()
            self._timeline.tell("the damaged files of the changelog are repaired")
            return
        files = self._disk.files()
        if files:
            path, how = files[step.host * 7 % len(files)], DAMAGES[step.amount % len(DAMAGES)]
            self._disk.damaged[path] = how
            self._timeline.tell(f"{shown(path)} {how}")

    def _stop_and_start(self) -> None:
        """Stop all hosts, and start others. Where tasks have committed, a start that finds no commit is refused."""
        if self._loses_records:
            return
        self._timeline.tell("the application is stopped")
        self._cluster.stop()
        known = {position for commit in self._cluster.known.values() for position in commit.positions}
        self._committed.add(known)
        if known:
            with self._log.without_commits(self.application.id):
                try:
                    prepare(stored_application(self._made, self._log), self._log)
                except IncompatibleStateError as error:
                    self._timeline.tell(f"a start that finds no commits is refused: {type(error).__name__}")
                else:
                    raise self.failure("an application whose commits the log has lost is started")
        self._restart()

    def _restart(self) -> None:
        prepared = self._prepared(self._made)
        self.application = prepared.application
        self._cluster.restart(prepared)

    def _reset(self, step: Step) -> None:
        """Stop the application and reset it to the start of its topics. What was produced before counts for itself."""
        sources = [TopicPartition(name, number) for name in self.arrived for number in range(self._partitions)]
        if self._loses_records or not self._may_be_moved or any(self._log.start_offsets(sources).values()):
            return
        self._stop("to be reset")

        def act(log: Log, world: World, check_lease: Callable[[], None]) -> None:
            plan = reset.plan_reset(self.application, log, reset.to_earliest)
            reset.reset(self.application, log, plan, check_lease, world)

        before = self._log.resets
        while not self._operate(act, step) and step.amount % 2:
            self._timeline.pass_by(LEASE_SECONDS)
        if self._log.resets > before:
            self._log.write_markers()  # a host that woke may have committed before
            # One that died since then may have left a transaction open, before records of others that count.
            with self._log.without_transactions():
                produced = self.outputs()
                written = [TopicPartition(name, number) for name in produced for number in range(self._partitions)]
                self._life_begins = self._log.end_offsets(written)
            self.lives.append(produced)
            self._cluster.known.clear()
            self._timeline.tell("the application was reset")
        self._restart()

    def _move_changelog(self, step: Step) -> None:
        """Stop the application, and start it with its changelog in another place, to which its state is copied."""
        if not is_on_disk(self._settings) or not self._may_be_moved or self._disk.damaged:
            return
        self._stop("to move its changelog")
        before = self.application.settings.changelog
        place, mark, sizes = self._settings["changelog"].partition("?")
        place = place.removesuffix(_MOVED) if place.endswith(_MOVED) else place + _MOVED
        self._settings = {**self._settings, "changelog": f"{place}{mark}{sizes}"}
        self.application = simulated(self._made, self._settings, self._directory)

        def act(log: Log, world: World, check_lease: Callable[[], None]) -> None:
            changelog_move.move_changelog(check_program(self.application, log), log, before, check_lease, world=world)

        while not self._operate(act, step):
            self._timeline.pass_by(LEASE_SECONDS)
        self._timeline.tell("the changelog was moved")
        if step.host % 4 == 3:
            self._power_off(Step("power", amount=self._cluster.machines))
        self._restart()

    def _operate(self, act: Act, step: Step) -> bool:
        """Let an operator's process do something; return whether it was done. Frozen hosts may wake in the middle."""
        cluster, random = self._cluster, Random(step.amount)

        def wake_one() -> None:
            frozen = cluster.frozen()
            if step.host % 2 and frozen and random.randrange(2):
                cluster.wake(random.choice(frozen))

        host: OperatorHost = cluster.start_beside(0, OperatorHost, act, wake_one)
        cluster.let(host, host.work)
        cluster.end(host)
        return host.is_done

    def _take_over(self, step: Step) -> None:
        """Start a host beside a frozen one, or on another machine, and give it the tasks; then the frozen one wakes.

        The successor may die, and its tasks are opened over an empty disk: so it shows at once what the frozen one has
        done to the changelog.
        """
        cluster = self._cluster
        frozen = [each for each in cluster.hosts if each.is_frozen and not each.is_of_earlier_program]
        if not frozen:
            return
        host = frozen[step.host % len(frozen)]
        successor = cluster.start((host.machine + step.amount % 2) % cluster.machines)
        self._give_tasks(host, successor)
        for _ in range(_FEWEST_STRETCHES + step.amount // 2 % _MORE_STRETCHES):
            if successor.can_act:
                cluster.work_on(successor)
                self._pass_by(_PAUSE_SECONDS)
                self._arrive(2)
        if host.is_frozen:  # its machine may have gone down
            cluster.wake(host)
        while step.amount & 8 and host.world.calls and host.can_act:
            cluster.run_call(host, 0)
        if step.amount & 16 and successor.can_act:
            cluster.kill(successor)
            cluster.replace_disk(successor.machine)
            third = cluster.start(successor.machine)
            self._give_tasks(successor, third)
            if third.can_act:
                cluster.work_on(third)

    def _give_tasks(self, owner: Host, host: Host) -> None:
        for task in [name for name, each in self._cluster.owners.items() if each is owner]:
            if host.can_act:
                self._cluster.give(task, host)

    @property
    def _may_be_moved(self) -> bool:
        """Whether no process reads the changelog beside the hosts."""
        return not (self._cluster.has_replicas or self._cluster.has_standbys)

    def _stop(self, why: str) -> None:
        """Stop the application; the log gives up what frozen hosts have not committed."""
        self._timeline.tell(f"the application is stopped {why}")
        self._cluster.stop()
        self._log.write_markers()
        self._timeline.pass_by(TRANSACTION_SECONDS)

    def outputs(self) -> dict[str, list[Record]]:
        """Return the outputs since the last reset, as `SimulatedCluster.outputs`."""
        return self._outputs_from(self._life_begins)

    def _jump(self, host: Host, number: int) -> None:
        jump_ms = _JUMPS_MS[number % len(_JUMPS_MS)]
        if abs(host.world.ahead_ms + jump_ms) > _FARTHEST_MS:
            jump_ms = -jump_ms
        host.world.ahead_ms += jump_ms
        self._timeline.tell(f"the clock of {host} jumps by {jump_ms} ms")

    def _pass_by(self, seconds: float) -> None:
        self._timeline.pass_by(seconds)
        self._timeline.tell(f"{seconds:g} s have passed")

    def _arrive(self, count: int) -> None:
        arriving, self._waiting = self._waiting[:count], self._waiting[count:]
        for topic, record in arriving:
            self.arrived[topic].append(record)
            self.pipe(topic, *record)
            self._note_sent(topic)

    def _note_sent(self, topic: str) -> None:
        """Record the last arrived record: later, retention may have deleted it."""
        if topic in self._log.lossy_topics:  # what was read of it is not what it has
            return
        source, parts = self._source(topic), self.parts[topic]
        for number, new in enumerate(self._sent.by_partition(topic, source.key_serde, source.value_serde)):
            parts += [] if number < len(parts) else [[]]
            parts[number] += new

    def _write_markers(self) -> None:
        if self._log.has_open:
            self._log.write_markers()
            self._timeline.tell("the last commits can be read")


def is_on_disk(options: Mapping[str, Any]) -> bool:
    """Return whether the changelog of these options is in files."""
    return str(options.get("changelog", "")).startswith("directory:")


TAKE_OVER = "take over"
_ONE_IN = 4
"""One in how many histories has takeovers."""
_SHARE = 0.05
"""Share of its steps that one follows."""
_BEFORE = (
    ("arrive", "arrive", "work", "call"), ("arrive", "pass", "work"), ("call", "call", "arrive", "pass", "work")
)  # fmt: skip
"""Steps of the host that freezes, all or the first two parts: it has a commit to write, and its changelog to keep."""
_UPKEEP = ("cleaning", "snapshot", "looking for a snapshot")
_SHORT, _LONG, _LONGEST = 1, 5, 7
"""Numbers of a `pass`: a millisecond, a time after which a commit is due, and one after which a snapshot may be."""
_BEFORE_UPKEEP = (
    ("pass", _LONGEST), ("arrive", 0), ("arrive", 0), ("rest", LATE.index(UPKEEP)), ("arrive", 0), ("arrive", 0),
    ("pass", _LONG), ("work", 0),
)  # fmt: skip
"""Steps of one that freezes in its upkeep: a snapshot waits for its thread, and so does a commit after it."""
_STEPS = {
    "cleaning": 3, "snapshot": 5, "looking for a snapshot": 1, "working": 4, "reading": 3, "commit": 1, "opening": 1,
    "restoring": 1, "sending": 1,
}  # fmt: skip
"""The steps of the engine's work in which hosts freeze, and how often a seed chooses them."""
_OPERATIONS = {"cleaning": ("", "reads"), "snapshot": ("writes", "syncs", "completes")}
"""Operations of a step in which hosts freeze: files that are read or written there may be deleted by others."""
_PAUSE_SECONDS = 6.0
"""Seconds between two stretches of work of the successor: it looks whether a snapshot is due, and it cleans."""
_FEWEST_STRETCHES, _MORE_STRETCHES = 2, 3


def with_takeovers(history: History, random: Random) -> History:
    """Return a history with takeovers, or the same one. The same choices make the same history."""
    if random.randrange(_ONE_IN):
        return history
    steps: list[Step] = []
    for step in history.steps:
        steps.append(step)
        if random.random() < _SHARE:
            steps += _takeover(random)
    return replace(history, steps=tuple(steps))


def _takeover(random: Random) -> Iterator[Step]:
    number = random.randrange(8)
    [step] = random.choices(list(_STEPS), list(_STEPS.values()))
    is_upkeep = step in _UPKEEP and random.randrange(4) > 0
    if is_upkeep:
        yield from (Step(kind, number, amount) for kind, amount in _BEFORE_UPKEEP)
    else:
        for kind in (kind for part in _BEFORE[: random.choice((2, 3))] for kind in part):
            yield Step(kind, number, random.choice((_SHORT, _LONG)) if kind == "pass" else random.randrange(64))
    operation = random.choice(_OPERATIONS.get(step, ("",)))
    later = random.choice((0, 0, 1, 2, 5))
    fault = Fault("freezes", operation, after=random.random() < 0.5, later=later, step=step)
    yield Step("strike", number, fault=fault)
    last = Step(random.choice(("rest", "work", "call")), number, random.randrange(64))
    yield Step("rest", number) if is_upkeep else last
    yield Step(TAKE_OVER, random.randrange(8), random.randrange(64))


Act = Callable[[Log, World, Callable[[], None]], object]
"""What an operator does, with a log, a world, and a function that checks the lease."""


class OperatorHost(Host):
    """Does one thing under the application's lease, and then `is_done`. `between` is called before each check of it."""

    kind = "operator"

    def __init__(
        self, number: int, application: Application, log: HostLog, world: HostWorld, act: Act,
        between: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(number, application, log, world)
        self._do, self._between = act, between
        self.is_done = False

    def work(self) -> int:
        """Do the tool's work, or fail."""
        try:
            lease = self.log.lease(self.application.id, str(self), int(LEASE_SECONDS * 1000))
        except LeaseTakenError:
            return 0

        def check_lease() -> None:
            self._between()
            lease.renew()

        try:
            self._do(self.log, self.world.world, check_lease)
        except PenstockError as error:
            self.judge("of the operator", error)
        else:
            self.is_done = True
        lease.release()
        return 0
