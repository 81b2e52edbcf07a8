"""PendingCommit: what a task commits, from the moment it is taken out of the task until it is in changelog and log."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from penstock.log import Commit, TaskCommitter
from penstock.record import OutputBatch
from penstock.store import Changes

from .local_state.state import TaskState
from .report import Phases


@dataclass
class PendingCommit:
    """A commit that is not written yet. `last` is the one before it; `produced` counts its outputs.

    `delta` has the changes of the state; None if the version stays. The stores get them after `write`.
    """

    state: TaskState
    committer: TaskCommitter
    last: Commit
    commit: Commit
    outputs: list[OutputBatch]
    delta: Changes | None
    produced: int
    phases: Phases = field(default_factory=Phases)

    def write(self) -> None:
        """Append the delta to the changelog, and make the commit: the first two steps of the commit protocol.

        It may run in another thread, while the task rests. Raises as `TaskChangelog.append` and `TaskCommitter.commit`.
        """
        since, outputs = perf_counter(), self.outputs
        if self.delta is not None:
            outputs = outputs + self.state.append_delta(self.delta, self.commit.version, self.last)
            since = self.phases.add("changelog", since)
        self.committer.commit(self.commit, outputs)
        self.phases.add("write", since)
