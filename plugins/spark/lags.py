"""Lags: which input partitions have records that no task has processed, asked of the log as cheaply as possible."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from penstock.log import Log
from penstock.record import TopicPartition


class Lags:
    """The lags of one application's input partitions, as of the last `look`.

    `internal` and `latest`: topics that are the application's own, and topics that it first reads at their end.
    `behind` has the positions that are below their ends, by partition; `ends` all ends.
    """

    def __init__(
        self,
        log: Log,
        application_id: str,
        partitions: Sequence[TopicPartition],
        internal: Collection[str],
        latest: Collection[str],
    ) -> None:
        self._log = log
        self._application_id = application_id
        self._partitions = partitions
        self._internal = [each for each in partitions if each.topic in internal]
        self._sources = [each for each in partitions if each.topic not in internal]
        self._latest = frozenset(latest)
        self._targets: Mapping[TopicPartition, int] = {}
        self._is_settled = False
        self.ends: Mapping[TopicPartition, int] = {}
        self.behind: dict[TopicPartition, int] = {}

    def stop_at_present_ends(self) -> None:
        """Let the ends of source topics stay where they are now."""
        self._targets = self._log.end_offsets(self._sources)

    def look(self, *, everything: bool) -> None:
        """Ask the log again.

        A committed position matters only where the end has moved since the last look, or where the position was below
        it: the others are not asked for unless `everything`. For many partitions they cost more than all else.
        """
        ends = dict(self._log.end_offsets(self._partitions))
        for partition, target in self._targets.items():
            ends[partition] = min(ends[partition], target)
        before, behind = self.ends, self.behind
        asked = (
            self._partitions
            if everything
            else [each for each, end in ends.items() if before.get(each) != end or each in behind]
        )
        positions = self._log.committed(self._application_id, asked) if asked else {}
        fresh = [each for each, position in positions.items() if position is None and each.topic not in self._latest]
        starts = self._log.start_offsets(fresh) if fresh else {}
        now = {}
        for each, position in positions.items():
            start = starts.get(each, ends[each]) if position is None else position
            if start < ends[each]:
                now[each] = start
        self.ends, self.behind = ends, now

    def begin_batch(self) -> None:
        """Note that tasks will run: they may write to internal topics."""
        self._is_settled = False

    def are_records_on_their_way(self) -> bool:
        """Return whether internal topics have records beyond the ends of the last look.

        A committed transaction's records can only be read some time after the commit. Without a batch in between, the
        answer "no" stays.
        """
        if not self._is_settled and self._internal:
            highest = self._log.end_offsets(self._internal, stable=False)
            self._is_settled = all(end <= self.ends[each] for each, end in highest.items())
            return not self._is_settled
        return False
