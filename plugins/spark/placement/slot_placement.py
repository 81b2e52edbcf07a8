"""SlotPlacement: keeps the slots of a query at their executors, and moves them when executors come or go."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock import PenstockError
from penstock.plugins.engine.host.claims import Claims
from penstock.plugins.engine.host.executor_identity import describe
from penstock.plugins.engine.host.reports import SlotMessage
from penstock.support.repeats import Repeats

from ..session.sessions import is_cluster
from .executors import PLACED_ELSEWHERE, TAKEN_OVER, LateExecutors, Move, SlotOwners, SparkExecutors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_OPERATOR = 0
_STORE = "default"

_log = logging.getLogger("penstock.spark")


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
        """Note that the query runs; Spark forgets at each start what it prefers."""
        if self._executors is None:
            return
        self._preferred = PreferredExecutors(self._session, query)
        executors = self._executors.poll()
        if executors is not None:
            self._late.note(executors)
            self._do(self._owners.note_executors(executors))
        self._prefer(range(self._owners.slots))

    def note_batch(self, reports: Sequence[SlotMessage]) -> None:
        """Note the reports of one batch; slots may move."""
        self._do(self._owners.note_batch(reports, time.monotonic()))
        elsewhere = [each.slot for each in reports if each.elsewhere]
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
        moves: list[Move] = []
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

    def _do(self, moves: list[Move]) -> None:
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
