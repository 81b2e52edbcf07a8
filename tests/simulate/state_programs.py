"""Programs of backups, resharding, visitors and windows that close in silence, in simulated histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from penstock import Processor, Record, Topology, key_value_store, visitor
from penstock.dsl import StreamsBuilder, tumbling
from penstock.plugins.engine.program.visits import ask_for_visit, visit_statuses
from penstock.plugins.testing.simulation.contract import Case
from penstock.plugins.testing.simulation.history import History, Step
from penstock.plugins.testing.simulation.simulation import Simulation
from penstock.testing.simulation import SimulationContract

from .programs import SERDES, Counts, Keeps, contract, counts, counts_of_each, look_ups, many_records


class Passes(Keeps):
    """Counts the records of each key, and passes each on under one of three others."""

    def process(self, record: Record) -> None:
        self.store.put(record.key, (self.store.get(record.key) or 0) + 1)
        self.context.forward(record.with_key(f"{record.value % 3}"))


class Receives(Counts):
    """Counts what it gets in a store of its own; the order of what several tasks send is left to chance."""

    def init(self, context: object) -> None:
        super(Keeps, self).init(context)  # type: ignore[arg-type]
        self.store = self.context.get_store("received")

    def process(self, record: Record) -> None:
        super().process(Record(record.key, record.value, 0))


def passed_on() -> Topology:
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("passes", Passes, "in", stores=[key_value_store("kept")])
        .add_repartition("again", "passes")
        .add_processor("receives", Receives, "again", stores=[key_value_store("received")])
        .add_sink("out", "out", "receives")
    )


BACKUPS = {
    f"passed on, with backups, changelog {place}": contract(
        program=passed_on, records=many_records, options={"backups": True, "changelog": place}
    )
    for place in ("topic:", "directory:", "directory:s3://bucket/of mine")
} | {
    "counts, with backups, changelog topic:": contract(program=counts, records=many_records, options={"backups": True})
}
RESHARDS = {
    f"passed on, resharded, changelog {place}": contract(
        program=passed_on, records=many_records, options={"reshard": (3, 5), "changelog": place}
    )
    for place in ("topic:", "directory:")
} | {
    "look-ups by key, resharded": contract(
        program=partial(look_ups, "key", most=100), records=many_records, options={"reshard": (3, 5)}
    )
}


_VISIT = "visit"


class Visited(Processor):
    """Counts the records of each key, and how often each key was visited."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.kept, self.visits = context.get_store("kept"), context.get_store("visits")

    def process(self, record: Record) -> None:
        count = (self.kept.get(record.key) or 0) + 1
        self.kept.put(record.key, count)
        self.context.forward(record.with_value(count), to="out")

    @visitor("kept")
    def visit(self, key: str, value: int, argument: int) -> None:
        visits = (self.visits.get(key) or 0) + 1
        self.visits.put(key, visits)
        self.context.forward(Record(f"{argument} {key}", visits, 0), to="visited")
        if key != "bob":
            self.context.commit()  # and a portion ends here


def visited() -> Topology:
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("keeps", Visited, "in", stores=[key_value_store("kept"), key_value_store("visits")])
        .add_sink("out", "out", "keeps")
        .add_sink("visited", "visited", "keeps")
    )


class VisitSimulation(Simulation):
    """A history with steps in which a visit is asked for."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._steps = {**self._steps, _VISIT: self._visit}
        self.certain: list[set[str]] = []
        """By visit, the keys that the store has when it is asked for."""

    def _visit(self, step: Step) -> None:
        positions = {each.partition: at or 0 for each, at in self._checks.positions().items()}
        self.certain.append(
            {record.key for number, part in enumerate(self.parts["in"]) for record in part[: positions[number]]}
        )
        number = len(self.certain)
        ask_for_visit(self.application, self._log, _VISIT, self._timeline.now_ms(), number)
        self._timeline.tell(f"visit {number} is asked for")

    def answers(self) -> Mapping[str, Mapping[str, list[Record]]]:
        """Return the answers to records; those of visits are checked here."""
        found = self.outputs()
        self._check(found.pop("visited"))
        return {"": found}

    def _check(self, answers: list[Record]) -> None:
        left = [each for each in visit_statuses(self.application, self._log) if not each.is_over]
        if left:
            raise self.failure(f"no fault strikes any more, and a visit is not over: {left[0]}")
        times = Counter(record.key for record in answers)
        again = [key for key, count in times.items() if count > 1]
        if again:
            raise self.failure(f"visited more than once: {again}")
        missing = [
            f"{number} {key}"
            for number, keys in enumerate(self.certain, 1)
            for key in sorted(keys)
            if f"{number} {key}" not in times
        ]
        if missing:
            raise self.failure(f"never visited: {missing}")
        visits: dict[str, dict[int, int]] = {}
        for key, value, *_ in answers:
            number, _, name = key.partition(" ")
            visits.setdefault(name, {})[int(number)] = value
        for name, found in visits.items():
            if [found[number] for number in sorted(found)] != list(range(1, len(found) + 1)):
                raise self.failure(f"the state of a visit does not count with its answer: {name}, {found}")


class VisitContract(SimulationContract):
    """A program with a visitor, which is asked for a few times."""

    program = staticmethod(visited)
    reference = staticmethod(counts_of_each)
    records = staticmethod(many_records)
    options = SERDES

    simulation = VisitSimulation

    @classmethod
    def _case(cls, seed: int) -> Case:
        case = super()._case(seed)
        return replace(case, history=_with_visits(case.history, Random(~seed)))


def _with_visits(history: History, random: Random) -> History:
    """Return a history with some visits, and without resets, which forget them."""
    steps = [step for step in history.steps if step.kind != "reset"]
    for _ in range(1 + random.randrange(3)):
        steps.insert(random.randrange(len(steps) + 1), Step(_VISIT))
    return replace(history, steps=tuple(steps))


VISITS = {
    f"visited, changelog {place}": type("Visits", (VisitContract,), {"options": {**SERDES, "changelog": place}})
    for place in ("topic:", "directory:")
}


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
CONTRACTS = {**BACKUPS, **RESHARDS, **VISITS, **SILENCE}
