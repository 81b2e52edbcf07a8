"""LastCommit: finds and checks the commit that a task starts from, and makes the first one if there is none."""

from __future__ import annotations

import logging

from penstock import Application, Commit, IncompatibleStateError, Log, TaskCommitter, TaskId, version_counter
from penstock.task.task import partitions_read

from .commit import make_first
from .local_state.task_state import TaskState
from .lost_commits import NO_COMMIT, ways_on
from .positions import InputPartitions

_log = logging.getLogger("penstock.worker")


class LastCommit:
    """Finds and checks the commit that one task starts from."""

    def __init__(self, application: Application, task_id: TaskId, inputs: InputPartitions, log: Log) -> None:
        self._application = application
        self._settings = application.settings
        self._inputs = inputs
        self._partitions = [partition for partition, _ in inputs.sources]
        self._log = log
        self._where = f"application {application.id!r}, task {task_id}"

    def of(
        self, committer: TaskCommitter, state: TaskState, wall_clock_ms: int, before: Commit | None = None
    ) -> Commit:
        """Return the last commit, with a position for every partition; commit first if there is none like that.

        `before`: the commit that the log deleted with the topics whose positions it was kept beside, if it has none.
        Raises IncompatibleStateError when the log has lost a commit or a position.
        """
        last = committer.committed
        commit = last or before
        if commit is None:
            return self._make_first(committer, state, wall_clock_ms)
        commit = self._inputs.moved_to_new_topics(commit)
        if set(commit.positions) != set(self._partitions):
            commit = self._with_new_partitions(commit, wall_clock_ms)
        # A task that waits for a retry is opened again and again, and may never come to a commit of its own.
        if commit != last or committer.expires():
            committer.commit(commit, [])
        return commit

    def check(self, commit: Commit | None, known: Commit | None) -> None:
        """Raise IncompatibleStateError when the log has no commit, or one that is older than `known`.

        `known` was certainly made: the log must have it or a later one.
        """
        if known is None:
            return
        if commit is None:
            raise IncompatibleStateError(
                f"{self._where}: Spark's checkpoint knows a commit (state version {known.version}), "
                f"but the log has none: {NO_COMMIT}. {ways_on(self._settings)}"
            )
        # Elsewhere `offset_out_of_range` may have moved a position back.
        checked = self._partitions if self._settings.offset_out_of_range == "fail" else self._inputs.internal
        behind = [
            f"{partition} {commit.positions[partition]} < {position}"
            for partition, position in known.positions.items()
            if partition in commit.positions and commit.positions[partition] < position and partition in checked
        ]
        if version_counter(commit.version) < version_counter(known.version) or behind:
            raise IncompatibleStateError(
                f"{self._where}: the log's commit (version "
                f"{commit.version}{'; ' + ', '.join(behind) if behind else ''}) is older than one that was made before "
                f"(version {known.version}): the log lost data or is another one. {ways_on(self._settings)}"
            )

    def _make_first(self, committer: TaskCommitter, state: TaskState, wall_clock_ms: int) -> Commit:
        """Commit the starting positions and the empty version, so that a task without a commit has never run.

        Raises IncompatibleStateError when the changelog proves that it had one.
        """
        # `penstock reset` commits positions without a task's commit. If it was killed, it has not cleared the
        # changelog.
        given = self._log.committed(self._application.id, self._partitions)
        if all(position is None for position in given.values()) and (proven := state.proven()):
            raise IncompatibleStateError(
                f"{self._where}: the log has no commit of it, but its changelog proves one "
                f"(state version {max(proven)}): {NO_COMMIT}. {ways_on(self._settings)}"
            )
        positions = self._inputs.starting_positions(given, wall_clock_ms)
        commit = Commit(positions, state.new_version(None), self._inputs.with_topic_ids(b""))
        make_first(state, committer, commit)
        return commit

    def _with_new_partitions(self, commit: Commit, wall_clock_ms: int) -> Commit:
        """Return `commit` with starting positions for the partitions of a topic that was added.

        Raises IncompatibleStateError for a partition that the task has read before and whose position is gone.
        """
        new = [partition for partition in self._partitions if partition not in commit.positions]
        lost = sorted(map(str, set(new) & partitions_read(commit.engine_state)))
        if lost:
            raise IncompatibleStateError(
                f"{self._where}: it has read {', '.join(lost)}, and its commit has no position there: "
                "the topic was deleted and made again, or the log lost data. "
                f"What it would read now is not what follows on its state. {ways_on(self._settings, partly=True)}. "
                "Where the topic is another now, `offset_out_of_range`: earliest or latest goes on with what it has"
            )
        given = self._log.committed(self._application.id, self._partitions)
        starting = self._inputs.starting_positions(given, wall_clock_ms)
        for partition in new:
            _log.info("%s: reads %s from now on, from offset %d", self._where, partition, starting[partition])
        positions = {partition: commit.positions.get(partition, starting[partition]) for partition in self._partitions}
        return Commit(positions, commit.version, self._inputs.with_topic_ids(commit.engine_state))
