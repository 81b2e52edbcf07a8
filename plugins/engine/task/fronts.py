"""Fronts: for each sub-topology, the time as of which all of its upstream inputs have been read."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence

from penstock import TopicPartition
from penstock.task.progress import Front

UNKNOWN = Front(0)
"""The front of a sub-topology without any information."""
NOT_KNOWN = sys.maxsize
"""The end of a partition that has no leader now: nobody has read up to it."""
_STILL_LOOKS, _STILL_MS = 10, 60_000
"""A sub-topology of which so many looks, in so long, have found the same positions holds the others no longer."""


def in_front(upstream: Mapping[int, Collection[int]]) -> Mapping[int, frozenset[int]]:
    """Return, by sub-topology, its upstream sub-topologies that do not read its own outputs.

    One that is no key of `upstream` has no tasks, as with a pattern that no topic matches: it is in front of nobody.
    """
    return {
        one: frozenset(other for other in above if other in upstream and one not in upstream[other])
        for one, above in upstream.items()
    }


class Fronts:
    """The times of one application, by sub-topology. Called by one thread.

    A sub-topology with nothing in front has read everything as of a look once its positions reach the ends of that
    look; one behind it, as of the same time, once it reaches the ends of the next look, and so on. `upstream`,
    `holding`: see Graph; `inputs`: the partitions of each sub-topology.
    """

    def __init__(
        self,
        upstream: Mapping[int, Collection[int]],
        inputs: Mapping[int, Sequence[TopicPartition]],
        holding: Collection[int],
    ) -> None:
        self._in_front = in_front(upstream)
        self._inputs = inputs
        self._holding = frozenset(holding)
        self._marks: dict[int, _Mark] = {}
        self._read = dict.fromkeys(self._in_front, 0)  # as of when (ms) each has read everything
        self.fronts: dict[int, Front] = dict.fromkeys(self._in_front, UNKNOWN)
        """By sub-topology, how far everything in front of a task is read once it has reached the ends of the last
        look."""

    def look(
        self,
        clock_ms: int,
        ends: Mapping[TopicPartition, int],
        positions: Mapping[TopicPartition, int],
        *,
        busy: Collection[int] = (),
        paused: Collection[int] = (),
    ) -> None:
        """Note a look that began at `clock_ms`: it found these committed positions, and then these ends.

        Partitions without a position were not read; ends may be `NOT_KNOWN`. Sub-topologies with partitions missing
        stay as they are. `busy`: a task has still to call what was due at its `pending` time. `paused`: they hold
        nobody.
        """
        looked = {number: of for number, of in self._inputs.items() if ends.keys() >= set(of)}
        for number, inputs in looked.items():
            at, mark = [positions.get(each, 0) for each in inputs], self._marks.get(number)
            if mark is not None:
                # The log has lost what was after its present end.
                mark.ends = [*map(min, mark.ends, (ends[each] for each in inputs))]
                has_read = number not in busy and all(map(int.__ge__, at, mark.ends))
                if has_read or number in paused or mark.stands_still(at, clock_ms):
                    self._read[number] = mark.time
                    del self._marks[number]
        for number, inputs in looked.items():
            above = self._in_front[number]
            time = min((self._read[each] for each in above), default=clock_ms)
            read = sum(positions.get(at, 0) for one in above & self._holding for at in self._inputs[one])
            self.fronts[number] = Front(time, read)
            if number not in self._marks:
                at, of_inputs = [positions.get(each, 0) for each in inputs], [ends[each] for each in inputs]
                self._marks[number] = _Mark(time, of_inputs, at, clock_ms)

    def pending(self, number: int) -> int:
        """Return the next time as of which a sub-topology has to read everything."""
        return self._marks[number].time if number in self._marks else 0


class _Mark:
    """The ends that a sub-topology has to reach. `at` are its positions, which it has had since the look at `since`."""

    def __init__(self, time: int, ends: Sequence[int], at: Sequence[int], since: int) -> None:
        self.time = time
        self.ends = ends
        self._at = [*map(min, at, ends)]
        self._since = since
        self._looks = 0

    def stands_still(self, at: Sequence[int], clock_ms: int) -> bool:
        """Return whether the positions have not moved towards the ends for long, by a clock that may be set back.

        That they move on behind the ends does not count: then only due calls have not been made.
        """
        at = [*map(min, at, self.ends)]
        if at != self._at or clock_ms < self._since:
            self._at, self._since, self._looks = at, clock_ms, 0
        self._looks += 1
        return self._looks >= _STILL_LOOKS and clock_ms - self._since >= _STILL_MS
