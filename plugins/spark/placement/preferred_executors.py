"""PreferredExecutors: tells Spark to which executor it should give a slot."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

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
