"""Windows that close in silence, in histories with pauses of a day: each record is counted in one, whatever strikes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from penstock import Record
from penstock.dsl import StreamsBuilder, tumbling
from penstock.plugins.testing.simulation.contract import Case
from penstock.plugins.testing.simulation.history import History, Step
from penstock.plugins.testing.simulation.simulation import Simulation
from penstock.testing.simulation import SimulationContract

from .programs import SERDES

_PAUSE, _DAY_SECONDS = "pause", 86_400.0
_PAUSES_AT_END = 2


def silent() -> StreamsBuilder:
    """The counts of windows that close when nothing has arrived for a while.

    The grace is longer than the clocks of hosts differ: a record is late only where a window has closed too early.
    """
    builder = StreamsBuilder()
    keys = builder.stream("in").group_by_key()
    windows = keys.windowed_by(tumbling("10s", grace="10m"), emit="on_close", idle="20s").count("kept")
    windows.to_stream().map(lambda window, count: (window.key, count), with_key=True).to("out")
    return builder


class SilenceSimulation(Simulation):
    """A history with pauses of a day, in which records have the time of their arrival. It ends with such pauses.

    So a window that is closed before the records that wait makes these late, and one that is not closed in silence has
    no result.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._steps = {**self._steps, _PAUSE: lambda step: self._pass_by(_DAY_SECONDS)}

    def _arrive(self, count: int) -> None:
        now = self._timeline.now_ms()
        arriving = [(topic, record._replace(timestamp=now)) for topic, record in self._waiting[:count]]
        self._waiting = arriving + self._waiting[count:]
        super()._arrive(count)

    def settle(self) -> None:
        """Let everything be processed, and what is due in silence be called."""
        super().settle()
        for _ in range(_PAUSES_AT_END):
            self._pass_by(_DAY_SECONDS)
            super().settle()

    def answers(self) -> Mapping[str, Mapping[str, list[Record]]]:
        """Return how many records of each key were counted in windows that have closed."""
        counted = Counter[str]()
        for record in self.outputs()["out"]:
            counted[record.key] += record.value
        return {"": {"out": [Record(key, count, 0) for key, count in counted.items()]}}


def counted(records: list[Record]) -> Iterator[tuple[str, int]]:
    yield from Counter(record.key for record in records).items()


class SilenceContract(SimulationContract):
    program = staticmethod(silent)
    reference = staticmethod(counted)
    options = SERDES
    simulation = SilenceSimulation

    @classmethod
    def _case(cls, seed: int) -> Case:
        case = super()._case(seed)
        return replace(case, history=_with_pauses(case.history, Random(~seed)))


def _with_pauses(history: History, random: Random) -> History:
    """Return a history with some pauses, and without resets: what is counted again is in another window."""
    steps = [step for step in history.steps if step.kind != "reset"]
    for _ in range(1 + random.randrange(4)):
        steps.insert(random.randrange(len(steps) + 1), Step(_PAUSE))
    return replace(history, steps=tuple(steps))


SILENCE = {"silent": SilenceContract}
