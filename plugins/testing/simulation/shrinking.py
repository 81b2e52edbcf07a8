"""Shrinking: looking for the shortest history that fails, among those that a failing one becomes by leaving out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter

from penstock import Record

from .failure import SimulationFailure
from .history import COMMIT_INTERVALS, History, Step


@dataclass(frozen=True)
class Case:
    """Records of each source topic, and the history in which they arrive."""

    records: Mapping[str, tuple[Record, ...]]
    history: History

    def with_steps(self, begin: int, end: int, *steps: Step) -> Case:
        """Return this case with other steps in place of those from `begin` to `end`."""
        given = self.history.steps
        return replace(self, history=replace(self.history, steps=given[:begin] + steps + given[end:]))

    def without_record(self, topic: str, number: int) -> Case:
        """Return this case without one record of a topic."""
        records = self.records[topic]
        return replace(self, records={**self.records, topic: records[:number] + records[number + 1 :]})


def shrink(
    case: Case, failure: SimulationFailure, play: Callable[[Case], object], seconds: float = 50.0
) -> SimulationFailure:
    """Return the failure of the shortest case found within `seconds`. `play` raises for a case that fails."""
    return _Shrinking(case, failure, play, seconds).shrunk()


class _Shrinking:
    def __init__(self, case: Case, failure: SimulationFailure, play: Callable[[Case], object], seconds: float) -> None:
        self._case = case
        self._failure = failure
        self._play = play
        self._until = perf_counter() + seconds

    def shrunk(self) -> SimulationFailure:
        before = None
        while self._case != before and perf_counter() < self._until:
            before = self._case
            self._try(replace(self._case, history=replace(self._case.history, rest_arrives=False)))
            self._try(replace(self._case, history=replace(self._case.history, commit_interval=COMMIT_INTERVALS[0])))
            self._leave_out_steps()
            self._leave_out_records()
            self._simplify_steps()
        return self._failure

    def _try(self, case: Case) -> bool:
        """Take a case if it fails; return whether it does."""
        if case == self._case or perf_counter() >= self._until:
            return False
        try:
            self._play(case)
        except SimulationFailure as failure:
            self._case, self._failure = case, failure
            return True
        return False

    def _leave_out_steps(self) -> None:
        """Try without many steps that follow each other, then without fewer, the last ones first."""
        size = len(self._case.history.steps)
        while size:
            for end in range(len(self._case.history.steps), 0, -size):
                self._try(self._case.with_steps(max(0, end - size), end))
            size //= 2

    def _leave_out_records(self) -> None:
        arriving = sum(step.kind == "arrive" for step in self._case.history.steps)
        for topic, records in self._case.records.items():
            self._try(replace(self._case, records={**self._case.records, topic: records[:arriving]}))
        for topic, records in self._case.records.items():
            for number in reversed(range(len(records))):
                self._try(self._case.without_record(topic, number))

    def _simplify_steps(self) -> None:
        for number in range(len(self._case.history.steps)):
            while any(
                self._try(self._case.with_steps(number, number + 1, simpler))
                for simpler in self._case.history.steps[number].simpler()
            ):
                pass
