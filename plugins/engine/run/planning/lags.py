"""Lags: which input partitions have records that no task has processed, asked of the log as cheaply as possible."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from penstock import Log, TopicPartition
from penstock.plugins.engine.task.positions import starting_offsets
from penstock.program.offset_reset import EARLIEST, LATEST

_PAUSES = 20
"""While some partitions are behind, the ends of all are asked for after so many times the time that it took."""
_FEW = 64
"""So many partitions are always asked for: it takes little longer than asking for one."""
_ACTIVE_SECONDS = 10.0
"""Seconds since a partition's end has moved during which it is asked for at each look."""


class Lags:
    """The lags of one application's input partitions, as of the last `look`.

    `internal`: topics that are the application's own. `resets`: how topics are first read that are not read from their
    start; `now_ms` returns the wall clock, which that may depend on.
    `behind` has the positions that are below their ends, by partition, and `uncommitted` those among them where no
    commit is; `ends` all ends. `seconds` is a clock that never goes back.
    """

    def __init__(
        self,
        log: Log,
        application_id: str,
        partitions: Sequence[TopicPartition],
        internal: Collection[str],
        resets: Mapping[str, str],
        now_ms: Callable[[], int],
        seconds: Callable[[], float],
    ) -> None:
        self._log = log
        self._application_id = application_id
        self._partitions = partitions
        self._internal = [each for each in partitions if each.topic in internal]
        self._sources = [each for each in partitions if each.topic not in internal]
        self._resets = resets
        self._now_ms = now_ms
        self._targets: Mapping[TopicPartition, int] = {}
        self._is_settled = False
        self._seconds = seconds
        self._ask_all_at = 0.0
        self._active: dict[TopicPartition, float] = {}
        """When each partition was last seen behind or moving."""
        self.looked_ms = 0
        """The wall clock (ms) when all ends were asked for last."""
        self.look_seconds = 0.0
        """How long it takes to ask for all ends."""
        self.ends: dict[TopicPartition, int] = {}
        self.behind: dict[TopicPartition, int] = {}
        self.uncommitted: Collection[TopicPartition] = ()

    def stop_at_present_ends(self) -> None:
        """Let the ends of source topics stay where they are now."""
        self._targets = self._log.end_offsets(self._sources)

    def look(self, *, everything: bool) -> None:
        """Ask the log again, for no more than needed unless `everything`: a request grows with its partitions.

        While partitions that have had records lately are behind, the ends of the others are asked for now and then.
        """
        if everything or len(self._partitions) <= _FEW or not self._active or self._seconds() >= self._ask_all_at:
            self._look_at_all(everything)
            return
        self._look_at(list(self._active), everything)
        if not self.behind:
            self._look_at_all(everything)

    def _look_at_all(self, everything: bool) -> None:
        began, self.looked_ms = self._seconds(), self._now_ms()
        self._active = {each: at for each, at in self._active.items() if began < at + _ACTIVE_SECONDS}
        self._look_at(self._partitions, everything)
        now = self._seconds()
        self.look_seconds = now - began
        self._ask_all_at = now + _PAUSES * self.look_seconds

    def _look_at(self, partitions: Sequence[TopicPartition], everything: bool) -> None:
        """Ask for the ends of partitions, among them all that are behind.

        A committed position matters only where the end has moved since the last look, or where the position was below
        it: the others are not asked for unless `everything`.
        """
        found = dict(self._log.end_offsets(partitions))
        for partition in self._targets.keys() & found.keys():
            found[partition] = min(found[partition], self._targets[partition])
        moved = {each for each, end in found.items() if self.ends.get(each) != end}
        ends = {**self.ends, **found}
        asked = [each for each in partitions if everything or each in moved or each in self.behind]
        positions = self._log.committed(self._application_id, asked) if asked else {}
        fresh = {each: self._resets.get(each.topic, EARLIEST) for each, at in positions.items() if at is None}
        # The end of one that is read from its end is what was found here: with a later one it could seem to be behind.
        asked_for = {each: reset for each, reset in fresh.items() if reset != LATEST}
        starts = starting_offsets(self._log, asked_for, self._now_ms()) if asked_for else {}
        now = {}
        for each, position in positions.items():
            start = starts.get(each, ends[each]) if position is None else position
            if start < ends[each]:
                now[each] = start
        active = now.keys() | (moved & self.ends.keys())
        self._active |= dict.fromkeys(active, self._seconds())
        self.ends, self.behind, self.uncommitted = ends, now, fresh.keys() & now.keys()

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
