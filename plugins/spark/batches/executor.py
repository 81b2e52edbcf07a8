"""In Spark's workers, for `penstock run`: the proxy that hands a slot's batch to the slot's task host."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import Commit
from penstock.plugins.engine.host.claims import Claims, SlotLayout, owner_elsewhere
from penstock.plugins.engine.host.client import Client, end_hosts
from penstock.plugins.engine.host.executor_identity import LOCAL_EXECUTOR, executor_identity
from penstock.plugins.engine.host.log_lines import log_to_driver
from penstock.plugins.engine.host.reports import (
    STUCK,
    Observed,
    SlotMessage,
    SlotPlan,
    TaskFailure,
    offsets_from_json,
    offsets_to_json,
)
from penstock.plugins.engine.host.slot_engine import SlotCargo, SlotRequest
from penstock.plugins.engine.task.locations import open_log

from ..observed import COUNTS_SCHEMA, counts_row
from .host_caller import HostCaller

if TYPE_CHECKING:
    import pandas
    from pyspark.sql.streaming.state import GroupState

OUTPUT_SCHEMA = f"message string, {COUNTS_SCHEMA}"
STATE_SCHEMA = "commits string"
_HEARD = "heard"
"""Beside the tasks in a slot's state: the token of the slot's host, and the number of its last message with reports."""
_SUSPECT_SECONDS = 8.0
"""Seconds in which a host must give a sign of life that sends no heartbeats; longer than the five between two signs."""


@dataclass(eq=False)
class BatchFunction:
    """The function for applyInPandasWithState: one group for each slot.

    `layout`: None where Spark has one executor, which runs every attempt. `log_directory`, `log_level`: see SlotCargo.
    """

    hosts: HostCaller
    application_id: str
    layout: SlotLayout | None
    log_directory: str
    log_level: int

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let the host start while Spark's worker still imports pandas: that takes as long."""
        self.__dict__.update(state)
        from pyspark import TaskContext

        context = TaskContext.get()
        # On a cluster the slot may belong to another executor.
        if context is not None and (identity := executor_identity()).executor == LOCAL_EXECUTOR:
            self.hosts.client(context.partitionId(), identity).begin("first")

    def __call__(
        self, key: tuple[int], frames: Iterator[pandas.DataFrame], state: GroupState
    ) -> Iterator[pandas.DataFrame]:
        """Run one slot's batch: one row of `source.SCHEMA` in, one message out.

        The state keeps the last commits, and which message Spark has: it takes both in one step.
        """
        import pandas

        plan = next(SlotPlan.from_json(text) for frame in frames for text in frame["plan"])
        saved: dict[str, list[Any]] = json.loads(state.get[0]) if state.exists else {}
        message = self.run(plan, saved)
        if (following := saved_after(saved, message)) != saved:
            state.update((json.dumps(following, separators=(",", ":")),))
        observed = message.observed or Observed.of(message, plan, commits_in(saved))
        yield pandas.DataFrame([{"message": message.to_json(), **counts_row(observed)}])

    def run(self, plan: SlotPlan, saved: Mapping[str, list[Any]]) -> SlotMessage:
        """Hand the batch to the slot's host, if the slot belongs to this executor. `saved` is the slot's state.

        An error is returned in the message. Otherwise Spark would repeat the batch, which does not help, and would wrap
        the error in its own.
        """
        identity = executor_identity()
        logs = log_to_driver(Path(self.log_directory), self.log_level)
        token, number = saved.get(_HEARD, ("", 0))
        client = self.hosts.client(plan.slot, identity)
        try:
            self.hosts.check(identity)
            owner = self._owner_elsewhere(plan, identity.text, client)
            if owner:
                return SlotMessage(plan.slot, identity.text, elsewhere=owner, planned=plan.owner)
            suspect, _, process = plan.suspect.partition(" ")
            if suspect == STUCK:
                client.close()
                end_hosts([client.spec.key], "its tasks have made no turn for too long", int(process))
            message: SlotMessage = client.call(
                SlotRequest(plan, commits_in(saved), identity.text, (token, number)),
                reason="host lost" if plan.owner == identity.text else "first",
                silent_seconds=_SUSPECT_SECONDS if plan.suspect else None,
            )
        except Exception as error:
            failure = TaskFailure.of_slot(self.application_id, plan.slot, error)
            message = SlotMessage(plan.slot, identity.text, failure=failure)
        lines = message.lines + logs.take()
        return replace(message, lines=lines, losses=client.take_losses(), planned=plan.owner)

    def _owner_elsewhere(self, plan: SlotPlan, own: str, client: Client) -> str:
        """Return the executor to which this one must leave the slot; "" if there is none.

        Where nobody has the slot, its host starts while the log is asked for a claim.
        """
        from pyspark import TaskContext

        layout, context = self.layout, TaskContext.get()
        if layout is None or context is None:
            return ""
        with ExitStack() as stack:

            def claims() -> Claims:
                cargo: SlotCargo = pickle.loads(self.hosts.cargo)
                log = open_log(cargo.application.settings)
                stack.callback(log.close)
                return Claims(log, self.application_id, layout)

            attempt = context.attemptNumber()
            if not plan.owner and attempt == 0:
                client.begin("first")
            return owner_elsewhere(plan.slot, plan.owner, own, attempt, claims, wait_seconds=layout.wait_seconds)


def commits_in(saved: Mapping[str, list[Any]]) -> dict[str, Commit]:
    """Return the last commits of a slot's tasks in its state."""
    commits = ((task, *each) for task, each in saved.items() if task != _HEARD)
    return {task: Commit(offsets_from_json(positions), version) for task, version, positions in commits}


def saved_after(saved: Mapping[str, list[Any]], message: SlotMessage) -> dict[str, list[Any]]:
    """Return the state of a slot after a batch with this message."""
    reports = [each.report for each in message.results if each.report is not None]
    commits = {each.task_id: [each.version, offsets_to_json(each.positions)] for each in reports}
    if message.host is not None and message.number and (reports or message.kept):
        return {**saved, **commits, _HEARD: [message.host.token, message.number]}
    return {**saved, **commits}
