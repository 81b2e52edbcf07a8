"""Right programs of several kinds, and one planted line in each: what `ProcessorContract` has to pass and to find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from penstock import Processor, Record, Topology, key_value_store
from penstock.plugins.testing.strategies import streams

from . import planted_processors as kinds
from . import planted_programs as sums
from . import planted_surroundings as elsewhere
from . import planted_visitors as visitors
from .planted_programs import counting


@dataclass(frozen=True)
class Case:
    """A suite in three lines, and more attributes of it. `bug`: what is wrong with the program."""

    program: Callable[[], Topology]
    reference: Callable[[Any], Iterable[Any]]
    records: Any
    bug: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


def program(
    processor: type[Processor],
    sources: Sequence[str] = ("in",),
    sinks: Sequence[str] = ("out",),
    value_serde: str = "int",
    **options: Any,
) -> Callable[[], Topology]:
    """Return a function that makes a topology with one processor and one store of JSON."""

    def make() -> Topology:
        topology = Topology()
        for source in sources:
            topology.add_source(source, source, value_serde=value_serde)
        topology.add_processor("processor", processor, list(sources), stores=[key_value_store("store", **options)])
        for sink in sinks:
            topology.add_sink(sink, sink, "processor", value_serde="json")
        return topology

    return make


LATE, EDGES = streams(late="8s"), streams(late="20s", around=["10s", "5s"])
BOTH = {"users": streams(max_size=12), "clicks": streams(max_size=12)}
VISIT = {"visit_arguments": {"count.double": 2}}
DICTS = streams(values=st.fixed_dictionaries({"a": st.integers(0, 1), "b": st.integers(0, 1)}))
CLOCK = {"sees_clock": True, "wall_clock": "3m"}

RIGHT: dict[str, Case] = {
    "sums": Case(lambda: counting(sums.Sum), sums.sums_with_headers, LATE),
    "seldom": Case(program(kinds.Seldom), kinds.seldom, EDGES),
    "windows": Case(program(kinds.Windows), kinds.windows, EDGES),
    "each minute": Case(program(kinds.EachMinute), kinds.each_minute, LATE, attributes=CLOCK),
    "joins": Case(program(kinds.Joins, ["users", "clicks"]), kinds.joins, BOTH),
    "routes": Case(program(kinds.Routes, sinks=["even", "odd"]), kinds.routes, LATE),
    "tags": Case(program(kinds.Tags), kinds.tags, LATE),
    "changes": Case(program(elsewhere.Changes, value_serde="json"), elsewhere.changes, DICTS),
    "days": Case(program(elsewhere.Days), elsewhere.days, LATE, attributes={"bounded": False}),
    "doubles": Case(lambda: counting(visitors.Doubles), sums.running_sums, LATE, attributes=VISIT),
}


def planted(right: str, bug: type[Processor], *, records: Any = None, **options: Any) -> dict[str, Case]:
    """Return the case of a right program with a bug in it."""
    case = RIGHT[right]
    records = case.records if records is None else records
    made = program(bug, **options)
    return {bug.__name__: Case(made, case.reference, records, bug.__doc__ or "", case.attributes)}


def on_five_seconds(records: list[Record]) -> list[Record]:
    """Return the records with times that are multiples of 5 s."""
    return [record._replace(timestamp=record.timestamp // 5_000 * 5_000) for record in records]


def planted_sum(bug: type[Processor], reference: Any = sums.running_sums, **options: Any) -> dict[str, Case]:
    """Return the case of a processor with a bug that keeps sums; `options`: those of `counting`, and the probe."""
    probe = {name: options.pop(name) for name in ("probe",) if name in options}
    return {bug.__name__: Case(lambda: counting(bug, **options), reference, LATE, bug.__doc__ or "", probe)}


def planted_visitor(bug: type[Processor], attributes: Mapping[str, Any]) -> Case:
    """Return the case of a processor whose visitor has a bug; `attributes`: more of the suite."""
    return Case(lambda: counting(bug), sums.running_sums, LATE, bug.__doc__ or "", {**VISIT, **attributes})


CASES: dict[str, Case] = {
    **{name: case for bug, options in sums.SUMS.items() for name, case in planted_sum(bug, **options).items()},
    **planted_sum(sums.DropsHeaders, sums.sums_with_headers),
    **planted_sum(sums.DropsAnEmptyHeader, sums.sums_with_headers),
    **planted_sum(sums.Mails, probe=staticmethod(lambda: sums.MAILS)),
    **planted("seldom", kinds.SeldomEdge),
    **planted("seldom", kinds.SeldomStreamTime),
    # It shows only where a late record comes at one certain time, so times are coarse.
    **planted("windows", kinds.GraceEdge, records=EDGES.map(on_five_seconds)),
    **planted("windows", kinds.NoGrace),
    **planted("windows", kinds.LastWindow),
    **planted("windows", kinds.WindowsKept),
    **planted("windows", kinds.CleansEarly),
    **planted("each minute", kinds.CountsMinutes),
    **planted("each minute", kinds.SendsAgain),
    **planted("each minute", kinds.MinutesOfRecords),
    **planted("joins", kinds.KeepsDeletedUsers, sources=["users", "clicks"]),
    **planted("joins", kinds.RemembersUsers, sources=["users", "clicks"]),
    **planted("joins", kinds.OldUsersOnly, sources=["users", "clicks"]),
    **planted("routes", kinds.RoutesByTask, sinks=["even", "odd"]),
    **planted("routes", kinds.RoutesDeletions, sinks=["even", "odd"]),
    **planted("tags", kinds.TagsOfASet),
    **planted("tags", kinds.AllTags),
    **planted_sum(elsewhere.SharedCache),
    **planted_sum(elsewhere.GapIsALoss),
    **planted_sum(elsewhere.NotInTheMorning),
    **planted_sum(elsewhere.NotOnSundays),
    **planted_sum(elsewhere.NotAtMidnight),
    **planted_sum(elsewhere.ThirtyTwoBits),
    **planted_sum(elsewhere.NothingOfLastYear),
    **planted_sum(elsewhere.AHundredAtMost),
    **planted_sum(elsewhere.EmptyIsNone),
    **planted_sum(elsewhere.HeaderWithAValue),
    **planted_sum(elsewhere.ForwardsElsewhere),
    **planted("seldom", elsewhere.ZeroIsNone),
    **planted("changes", elsewhere.ComparesText, value_serde="json"),
    **planted("days", elsewhere.LocalDays),
    **planted("days", elsewhere.UpToTheNextWeek),
    **planted("days", elsewhere.NeverBelowZero),
    **planted("days", elsewhere.LosesDigits),
    **planted("days", elsewhere.SendsFloats),
    **{bug.__name__: planted_visitor(bug, given) for bug, given in visitors.VISITORS.items()},
}
"""Programs with one bug each."""
