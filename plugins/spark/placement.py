"""Executors: which executors Spark has, and which of them each slot belongs to."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from penstock import PenstockError
from penstock.plugins.engine.host.claims import Claims
from penstock.plugins.engine.host.executor_identity import describe, executor_id, node_name
from penstock.plugins.engine.host.reports import SlotMessage
from penstock.plugins.state.copies.settings import rack_of
from penstock.support.repeats import Repeats

from .sessions import is_cluster

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


LOST = "executor lost"
REBALANCED = "rebalanced"
PLACED_ELSEWHERE = "Spark places it elsewhere"
TAKEN_OVER = "taken over by another attempt"

_MOST_BATCHES = 20
"""Number of batches in a row without the owner after which a healthy owner loses the slot."""
_LEAST_BATCHES, _MOST_SECONDS = 3, 150.0
"""The same, for long batches: so many batches, over so many seconds (the lease of a host)."""


@dataclass(frozen=True)
class Executor:
    """An executor as Spark's driver sees it. `unfit`: the reason why it must not have slots, "" if there is none."""

    cores: int
    unfit: str = ""


@dataclass(frozen=True)
class SlotMove:
    """An order: `executor` no longer has the slot, and the next one that gets it from Spark takes it."""

    slot: int
    executor: str
    reason: str


class SlotOwners:
    """The owner of each slot, as the text of an `ExecutorIdentity`.

    A slot without an owner belongs to the executor that first reports that it ran it. A report from elsewhere alone
    never moves a slot: its tasks are open at the owner, and opening them takes longer than another batch. A slot moves
    - when its owner is gone, or unfit;
    - at once, when its owner has more slots than cores and the executor that reports has cores to spare;
    - when Spark keeps placing it elsewhere, because progress matters more.

    `moves` counts the moves by reason. In local mode the one executor has all slots, and nothing moves.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.owners: dict[int, str] = {}
        self.moves: Counter[str] = Counter()
        self._executors: Mapping[str, Executor] | None = None
        self._elsewhere: dict[int, _Streak] = {}
        self._patience: Counter[int] = Counter()
        self._avoided: dict[int, str] = {}
        """By slot, the executor that Spark avoids for it."""
        self._keepers: dict[int, list[int]] = {}
        self._warm: dict[int, set[str]] = {}
        """By slot, the machines with copies of its tasks."""
        self._left: dict[int, str] = {}
        """By slot without an owner, the last one."""
        self.lost: set[int] = set()
        """The slots without an owner whose last one was lost."""

    def note_batch(self, reports: Iterable[SlotMessage], now: float) -> list[SlotMove]:
        """Handle the reports of one batch; return the resulting moves. `now`: seconds of a monotonic clock."""
        moves: list[SlotMove] = []
        for report in sorted(reports, key=lambda each: each.slot):
            if self._is_outdated(report):
                continue
            moves += self._note_elsewhere(report, now) if report.elsewhere else self._note_run(report)
        return moves

    def note_executors(self, executors: Mapping[str, Executor]) -> list[SlotMove]:
        """Update the executors of the cluster, by Spark's id; return the resulting moves."""
        self._executors = dict(executors)
        return [
            self._clear(slot, unfit) for slot, owner in sorted(self.owners.items()) if (unfit := self._unfit(owner))
        ]

    def forget(self) -> list[SlotMove]:
        """Give every slot up, because the query starts again with another layout."""
        return [self._clear(slot, REBALANCED) for slot in sorted(self.owners)]

    def even_out(self) -> list[SlotMove]:
        """Take slots from executors with more slots than cores, as far as others have cores to spare."""
        moves: list[SlotMove] = []
        for slot, owner in sorted(self.owners.items(), reverse=True):
            if self._is_crowded(owner) and self._has_spare_cores():
                moves.append(self._clear(slot, REBALANCED))
        return moves

    def keep_copies(self, copies: int, racks: str | None = None) -> dict[int, list[int]]:
        """Return the slots whose hosts keep copies of each slot's tasks (`standby_slots`); remember on which machines.

        While a slot has no owner, its copies stay where they were.
        """
        if not copies:
            return {}
        if len(self.owners) == self.slots:
            self._keepers = standby_slots(self.owners, copies, racks)
            self._warm = {
                slot: {node_name(self.owners[each]) for each in keepers} for slot, keepers in self._keepers.items()
            }
        return self._keepers

    def targets(self) -> dict[int, str]:
        """Return, for each slot, Spark's id of the executor that should get it: its owner, or the one with most room.

        One on a machine with copies of the slot's tasks comes first. Empty while nothing is known of executors.
        """
        fit, counts = self._fit(), self._counts()
        if not fit:
            return {}
        targets = {slot: executor_id(owner) for slot, owner in self.owners.items()}
        machines = {executor_id(owner): node_name(owner) for owner in self.owners.values()}
        for slot in range(self.slots):
            if slot not in targets:
                avoided, warm = self._avoided.get(slot), self._warm.get(slot, ())
                targets[slot] = min(
                    fit,
                    key=lambda name: (
                        name == avoided,
                        machines.get(name) not in warm,
                        (counts[name] + 1) / max(1, fit[name].cores),
                        name,
                    ),
                )
                counts[targets[slot]] += 1
        return targets

    def _fit(self) -> dict[str, Executor]:
        return {name: each for name, each in (self._executors or {}).items() if not each.unfit}

    def _counts(self) -> Counter[str]:
        return Counter(executor_id(owner) for owner in self.owners.values())

    def _is_outdated(self, report: SlotMessage) -> bool:
        """Return whether the batch was planned before the slot's last move, and ran as planned."""
        is_as_planned = bool(report.elsewhere) or report.executor == report.planned
        return is_as_planned and report.planned != "" and report.planned == self._left.get(report.slot)

    def _note_run(self, report: SlotMessage) -> list[SlotMove]:
        slot, executor = report.slot, report.executor
        self._elsewhere.pop(slot, None)
        owner = self.owners.get(slot)
        if owner == executor or self._unfit(executor):
            # An executor that is about to end, or has ended, may have run the batch that is reported only now.
            return []
        self.owners[slot] = executor
        self._avoided.pop(slot, None)
        self._left.pop(slot, None)
        self.lost.discard(slot)
        if owner is None:
            return []
        self.moves[TAKEN_OVER] += 1
        return [SlotMove(slot, owner, TAKEN_OVER)]

    def _note_elsewhere(self, report: SlotMessage, now: float) -> list[SlotMove]:
        slot = report.slot
        owner = self.owners.get(slot)
        if owner is None:
            # The proxy found the owner's claim in the log; the owner's own report was lost with its attempt.
            unfit = self._unfit(report.elsewhere)
            if unfit:
                return [SlotMove(slot, report.elsewhere, unfit)]
            self.owners[slot] = report.elsewhere
            self.lost.discard(slot)
            return []
        if owner == report.executor:
            return []
        if self._is_crowded(owner) and self._has_room(report.executor) and self._has_spare_cores():
            return [self._clear(slot, REBALANCED)]
        streak = self._elsewhere.setdefault(slot, _Streak(now))
        streak.batches += 1
        # After each such move the patience doubles, so that a slot whose batches are long does not go back and forth.
        times = 1 << min(self._patience[slot], 10)
        if streak.batches >= _MOST_BATCHES * times or (
            streak.batches >= _LEAST_BATCHES and now - streak.since >= _MOST_SECONDS * times
        ):
            self._patience[slot] += 1
            self._avoided[slot] = executor_id(owner)
            return [self._clear(slot, PLACED_ELSEWHERE)]
        return []

    def _clear(self, slot: int, reason: str) -> SlotMove:
        self._elsewhere.pop(slot, None)
        if reason == REBALANCED:
            self._warm.pop(slot, None)  # it moves to where there is room
        self.moves[reason] += 1
        if reason == LOST:
            self.lost.add(slot)
        owner = self._left[slot] = self.owners.pop(slot)
        return SlotMove(slot, owner, reason)

    def _unfit(self, identity: str) -> str:
        """Return why an executor must not have slots; "" if it may, or if the executors are unknown."""
        if self._executors is None:
            return ""
        found = self._executors.get(executor_id(identity))
        return LOST if found is None else found.unfit

    def _is_crowded(self, identity: str) -> bool:
        cores = self._cores(identity)
        return cores is not None and self._slots_of(identity) > cores

    def _has_room(self, identity: str) -> bool:
        cores = self._cores(identity)
        return cores is not None and not self._unfit(identity) and self._slots_of(identity) < cores

    def _has_spare_cores(self) -> bool:
        """Return whether there are more spare cores than slots without an owner, which will take some of them."""
        counts = self._counts()
        spare = sum(max(0, each.cores - counts[name]) for name, each in self._fit().items())
        return spare > self.slots - len(self.owners)

    def _cores(self, identity: str) -> int | None:
        found = (self._executors or {}).get(executor_id(identity))
        return None if found is None else found.cores

    def _slots_of(self, identity: str) -> int:
        return self._counts()[executor_id(identity)]


@dataclass
class _Streak:
    """Batches in a row in which Spark gave a slot to other executors than its owner."""

    since: float
    batches: int = 0


def standby_slots(owners: Mapping[int, str], copies: int, racks: str | None = None) -> dict[int, list[int]]:
    """Return, for each slot with an owner, the slots whose hosts keep copies of its tasks: each on another machine.

    `owners`: the text of the ExecutorIdentity of each slot. `racks`: as the setting; a copy is in a rack that has
    neither the slot nor another copy, as far as there are racks. There are fewer than `copies` where there are too few
    machines. A machine is chosen by a hash of slot and machine, so one that comes or goes changes few others.
    """
    machines: dict[str, list[int]] = {}
    for slot, owner in sorted(owners.items()):
        machines.setdefault(node_name(owner), []).append(slot)
    rack = {machine: rack_of(racks, machine) for machine in machines}
    counter: Counter[int] = Counter()
    found: dict[int, list[int]] = {}
    for slot, owner in sorted(owners.items()):
        mine = node_name(owner)
        others = _spread(
            sorted((each for each in machines if each != mine), key=lambda each: _weight(slot, each)), rack, mine
        )
        found[slot] = [min(machines[each], key=lambda host: (counter[host], host)) for each in others[:copies]]
        counter.update(found[slot])
    return found


def _spread(machines: Iterable[str], rack: Mapping[str, str], first: str) -> list[str]:
    """Return the machines in turns through their racks, that of `first` last in each turn."""
    seen: Counter[str] = Counter([rack[first]])
    turns = []
    for machine in machines:
        turns.append((seen[rack[machine]], machine))
        seen[rack[machine]] += 1
    return [each for _, each in sorted(turns, key=lambda turn: turn[0])]


def _weight(slot: int, machine: str) -> bytes:
    return blake2b(f"{slot}@{machine}".encode(), digest_size=8).digest()


DECOMMISSIONED = "executor decommissioned"
EXCLUDED = "executor excluded by Spark"

_LEAST_LOOK_SECONDS, _MOST_LOOK_SECONDS = 1.0, 2.0
_SHARE_OF_TIME = 0.01
_STEADY_SECONDS, _LONGEST_STEADY_SECONDS = 5.0, 320.0
_FIRST_EXECUTOR_SECONDS, _EXPECTED_EXECUTORS_SECONDS, _START_SECONDS = 10.0, 30.0, 1.0

_log = logging.getLogger("penstock.spark")


class SparkExecutors:
    """Asks the driver's JVM which executors there are.

    A look is a few calls. More follow only when executors came or went, or when `look_closely` was called because a
    slot was placed elsewhere. So an idle application costs the driver next to nothing, with any number of executors.
    """

    def __init__(self, context: SparkContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._spark: Any = context._jsc.sc()
        self._clock = clock
        self._next_look = 0.0
        self._ids = ""
        self._unfit = 0
        self._look_closely = False

    def look_closely(self) -> None:
        """Let the next look ask about each executor."""
        self._look_closely = True

    def poll(self) -> Mapping[str, Executor] | None:
        """Return the executors by id, if something may have changed; None otherwise, and before the next look is due.

        It looks about once a second; where a look takes long, less often, but at least every two seconds: a busy
        machine makes a single look slow, and tasks of a lost executor wait for the next one.
        """
        began = self._clock()
        if began < self._next_look:
            return None
        try:
            return self._look()
        finally:
            ended = self._clock()
            rest = (ended - began) / _SHARE_OF_TIME
            self._next_look = ended + max(_LEAST_LOOK_SECONDS, min(_MOST_LOOK_SECONDS, rest))

    def _look(self) -> Mapping[str, Executor] | None:
        ids = str(self._spark.getExecutorIds().mkString("\n"))
        unfit = int(self._spark.schedulerBackend().executorsPendingDecommission().size())
        if (ids, unfit) == (self._ids, self._unfit) and not self._look_closely:
            return None
        if not ids and not self._ids:
            # Before the first executor; and a scheduler that does not name its executors.
            return None
        found = self._details(ids.split("\n") if ids else [], self._ids.split("\n"))
        if found is not None:
            self._ids, self._unfit, self._look_closely = ids, unfit, False
        return found

    def _details(self, ids: list[str], before: list[str]) -> Mapping[str, Executor] | None:
        """Return the executors by Spark's account; None while its status store does not know all of them yet.

        One of `before` that has ended after it was decommissioned is included: an idle one ends at once.
        """
        scheduler, store = self._spark.taskScheduler(), self._spark.statusStore()
        known: dict[str, Any] = {}
        gone = sorted(set(before) - set(ids))
        summaries = store.executorList(not gone)
        for index in range(summaries.size()):
            summary = summaries.apply(index)
            known[summary.id()] = summary
        executors = {}
        for each in ids:
            if each not in known:
                return None
            summary = known[each]
            is_leaving = scheduler.getExecutorDecommissionState(each).isDefined()
            unfit = DECOMMISSIONED if is_leaving else EXCLUDED if summary.isExcluded() else ""
            executors[each] = Executor(int(summary.totalCores()), unfit)
        for each in gone:
            if each in known and _was_decommissioned(known[each]):
                executors[each] = Executor(0, DECOMMISSIONED)
        return executors


def _was_decommissioned(summary: Any) -> bool:
    reason = summary.removeReason()
    return bool(reason.isDefined()) and "decommission" in str(reason.get()).lower()


class LateExecutors:
    """Says when a new start is worth its price, because the executors have changed and stay so for some seconds.

    Executors often come one after the other, so each new start doubles these seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steady = _STEADY_SECONDS
        self._since: float | None = None
        self._executors: Mapping[str, Executor] = {}

    def note(self, executors: Mapping[str, Executor]) -> None:
        """Update the executors; the waiting time begins again if they have changed."""
        if executors != self._executors:
            self._executors = dict(executors)
            self._since = self._clock()

    def is_due(self) -> bool:
        """Return, once for each change, whether the executors have been the same for long enough."""
        if self._since is None or self._clock() - self._since < self._steady:
            return False
        self._since = None
        return True

    def started_again(self) -> None:
        """Record a new start because of changed executors."""
        self._steady = min(2 * self._steady, _LONGEST_STEADY_SECONDS)


def wait_for_executors(context: SparkContext) -> None:
    """On a cluster, wait until the executors that are expected are there, so that the first layout can stay.

    On YARN and Kubernetes the configuration may say how many are expected. Elsewhere: until none has come for a second.
    """
    if not is_cluster(context.master):
        return
    spark: Any = context._jsc.sc()
    expected = expected_executors(context.master, dict(context.getConf().getAll()))
    began = last_change = time.monotonic()
    count = 0
    while True:
        found = int(spark.getExecutorIds().size())
        now = time.monotonic()
        if found != count:
            count, last_change = found, now
        longest = _EXPECTED_EXECUTORS_SECONDS if expected else _FIRST_EXECUTOR_SECONDS
        is_complete = count >= expected if expected else count > 0 and now - last_change >= _START_SECONDS
        if is_complete or now - began > longest:
            break
        time.sleep(0.1)
    if count < expected:
        _log.warning("Spark has %d of the %d executors that it was told to start: starting with them", count, expected)


def expected_executors(master: str | None, configuration: Mapping[str, str]) -> int:
    """Return the number of executors that the cluster will start; 0 if it is not known."""
    if not (master or "").startswith(("yarn", "k8s")):
        return 0
    is_dynamic = configuration.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    name = "spark.dynamicAllocation.minExecutors" if is_dynamic else "spark.executor.instances"
    return int(configuration.get(name, "0"))


_OPERATOR = 0
_STORE = "default"


class PreferredExecutors:
    """The executors that Spark's scheduler prefers for the slots of one query.

    Spark prefers the executor that last had the state store of a shuffle partition. So once it has given a slot to
    another executor than its owner, it would do so again and again. This tells the coordinator of state stores, in the
    driver's JVM, that the store is at the owner. It is a preference: where the owner's cores are busy, or it is gone,
    Spark chooses another executor. Spark's interface for this is an internal one; without it, `prefer` does nothing.
    """

    def __init__(self, session: SparkSession, query: StreamingQuery) -> None:
        self._session = session
        self._query = query
        self._is_broken = False

    def prefer(self, slot: int, executor: str) -> None:
        """Let Spark prefer an executor, given by Spark's id, for a slot."""
        if self._is_broken:
            return
        try:
            self._prefer(slot, executor)
        except Exception as error:
            if self._query.isActive:
                self._is_broken = True
                _log.debug("Spark was not told the executors of slots: %s", error)

    def _prefer(self, slot: int, executor: str) -> None:
        context = self._session.sparkContext
        jvm: Any = context._jvm
        spark = context._jsc.sc()
        execution = self._query._jsq.streamingQuery()
        state = jvm.org.apache.spark.sql.execution.streaming.state
        nothing = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        store = state.StateStoreId(execution.checkpointFile("state"), _OPERATOR, slot, _STORE)
        host = spark.statusStore().executorSummary(executor).hostPort().rpartition(":")[0]
        coordinator = state.StateStoreCoordinatorRef.forDriver(
            spark.env(), self._session._jsparkSession.sessionState().conf()
        )
        coordinator.reportActiveInstance(state.StateStoreProviderId(store, execution.runId()), host, executor, nothing)


class SlotPlacement:
    """The slots of one query in Spark's driver.

    It passes what Spark and the proxies report to `SlotOwners`, and does what follows from it: it deletes the claims of
    slots that move, and tells Spark which executors to prefer. With one executor (`local` masters) nothing follows.
    """

    def __init__(
        self, session: SparkSession, claims: Claims, slots: int, late: LateExecutors, repeats: Repeats
    ) -> None:
        self._session = session
        self._repeats = repeats
        self._claims = claims
        self._owners = SlotOwners(slots)
        self._late = late
        self._executors = SparkExecutors(session.sparkContext) if is_cluster(session.sparkContext.master) else None
        self._preferred: PreferredExecutors | None = None
        self.is_outgrown = False

    @property
    def owners(self) -> dict[int, str]:
        """The identity of the executor that has each slot; a slot without one may go to any."""
        return self._owners.owners

    @property
    def lost(self) -> set[int]:
        """The slots without an owner whose executor was lost."""
        return self._owners.lost

    @property
    def moves(self) -> Counter[str]:
        """How many slots have moved, by reason."""
        return self._owners.moves

    def standbys(self, copies: int, racks: str | None) -> dict[int, list[int]]:
        """Return the slots whose hosts keep copies of each slot's tasks, as `standby_slots`."""
        return {} if self._executors is None else self._owners.keep_copies(copies, racks)

    def started(self, query: StreamingQuery) -> None:
        """Handle the start of a query: Spark forgets preferred executors at each start."""
        if self._executors is None:
            return
        self._preferred = PreferredExecutors(self._session, query)
        executors = self._executors.poll()
        if executors is not None:
            self._late.note(executors)
            self._do(self._owners.note_executors(executors))
        self._prefer(range(self._owners.slots))

    def note_batch(self, reports: Sequence[SlotMessage]) -> None:
        """Handle the reports of one batch; slots may move."""
        self._do(self._owners.note_batch(reports, time.monotonic()))
        elsewhere = [report.slot for report in reports if report.elsewhere]
        if elsewhere and self._executors is not None:
            self._executors.look_closely()
            self._prefer(elsewhere)

    def look(self, wanted_slots: Callable[[], int]) -> bool:
        """Look at the executors, about once a second; return whether slots move.

        Where they have changed, and then stayed, slots are evened out, if there are as many as the executors want.
        Otherwise `is_outgrown` is set: a new start with more slots is worth its price.
        """
        if self._executors is None:
            return False
        executors = self._executors.poll()
        moves: list[SlotMove] = []
        if executors is not None:
            self._late.note(executors)
            moves += self._owners.note_executors(executors)
        if self._late.is_due():
            self.is_outgrown = wanted_slots() > self._owners.slots
            if not self.is_outgrown:
                moves += self._owners.even_out()
        self._do(moves)
        self._prefer(each.slot for each in moves)
        return bool(moves)

    def give_up(self) -> None:
        """Count every slot as moved, because the query starts again with another number of slots."""
        self._late.started_again()
        self._do(self._owners.forget())

    # ------------------------------------------------------------------ inside

    def _do(self, moves: list[SlotMove]) -> None:
        for move in moves:
            level = logging.WARNING if move.reason == PLACED_ELSEWHERE else logging.INFO
            where = describe(move.executor)
            self._repeats.log(
                _log, level, ("move", move.reason), "slot %d leaves %s: %s", move.slot, where, move.reason
            )
            if move.reason != TAKEN_OVER and self._executors is not None:
                self._delete_claim(move.slot)

    def _delete_claim(self, slot: int) -> None:
        try:
            self._claims.delete(slot)
        except PenstockError as error:
            _log.warning("the claim of slot %d stays in the log, so a retry may wait for it: %s", slot, error)

    def _prefer(self, slots: Iterable[int]) -> None:
        targets = self._owners.targets()
        for slot in slots:
            if self._preferred is not None and slot in targets:
                self._preferred.prefer(slot, targets[slot])
