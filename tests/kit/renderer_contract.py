"""The tests that each of our renderers must pass."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from html import unescape
from typing import Any, ClassVar

from penstock import Processor, Program, Topology, key_value_store
from penstock.plugins.testing.contracts.expectations import shown
from penstock.plugins.testing.contracts.surroundings import run_elsewhere


class RendererContract:
    """The contract of a renderer, a function from a program to text, as tests."""

    renderer: Callable[[Program], str]
    """The renderer, as a `staticmethod`."""
    shows: ClassVar[Sequence[str]] = ("nodes", "topics", "stores")
    """What its text has the names of."""

    def test_every_name_is_in_it(self) -> None:
        """Of every node, topic and store of programs of every form; the text may be escaped as HTML is.

        A name that is a part of another, as `branch-1` is of `branch-10`, has to be there beside it.
        """
        for what, program in sample_programs().items():
            text = unescape(self._rendered(program, what))
            names = {
                "nodes": list(program.nodes),
                "topics": [*program.topics(), *program.sink_topics()],
                "stores": [store.name for store in program.all_stores()],
            }
            longest_first = sorted({name for kind in names.values() for name in kind}, key=len, reverse=True)
            for kind in self.shows:
                for name in names[kind]:
                    rest = text
                    for longer in longest_first:
                        rest = rest.replace(longer, "\n") if name in longer != name else rest
                    assert name in rest, (
                        f"a drawing has the name of each of the {kind}, and lacks {name!r}"
                        f"{', except as a part of longer names' if name in text else ''}: {what}"
                    )

    def test_a_program_always_looks_the_same(self) -> None:
        """In every process: a drawing is kept beside the code, and compared."""
        for what, program in sample_programs().items():
            first = self._rendered(program, what)
            again = self._rendered(sample_programs()[what], what)
            assert again == first, f"{what} was rendered as {shown(first)}, and then as {shown(again)}"
        here = {what: type(self).renderer(program) for what, program in sample_programs().items()}
        for seed in ("1", "2"):
            elsewhere = run_elsewhere(_rendered_all, type(self).renderer, seed, "a renderer")
            for what, text in here.items():
                assert elsewhere[what] == text, f"{what} is rendered in another way in another process"

    def test_it_changes_nothing(self) -> None:
        """A program is drawn before it runs."""
        for what, program in sample_programs().items():
            before = pickle.dumps(program.fingerprint())
            self._rendered(program, what)
            assert pickle.dumps(program.fingerprint()) == before, f"a renderer must not change the program: {what}"

    def _rendered(self, program: Program, what: str) -> str:
        try:
            text: Any = type(self).renderer(program)
        except Exception as error:
            raise AssertionError(f"a renderer writes any program, and raised {error!r} for {what}") from error
        assert type(text) is str and text.strip(), f"a renderer returns text, and returned {shown(text)} for {what}"
        return text


class _Step(Processor):
    def process(self, record: Any) -> None:
        self.context.forward(record)


def sample_programs() -> dict[str, Program]:
    """Return programs of every form, by what they are."""
    counts, seen = key_value_store("counts.v1"), key_value_store("seen-orders")
    alone = Topology().add_source("in", "orders")
    line = Topology().add_source("in", "orders").add_processor("count", _Step, "in", stores=[counts])
    line.add_sink("out", "order-counts", "count")
    branches = Topology().add_source("first", "orders").add_source("second", "payments", "refunds.eu")
    branches.add_processor("join_all", _Step, ["first", "second"], stores=[counts, seen])
    for number in range(12):
        branches.add_processor(f"branch-{number}", _Step, "join_all", stores=[seen] if number % 2 else [])
        branches.add_sink(f"sink-{number}", f"out.{number % 5}", f"branch-{number}")
    apart = Topology()
    for number in range(3):
        apart.add_source(f"source-{number}", f"topic-{number}")
        apart.add_processor(f"step-{number}", _Step, f"source-{number}", stores=[key_value_store(f"store-{number}")])
        apart.add_sink(f"end-{number}", f"topic-{number + 1}", f"step-{number}")
    built = {"a source alone": alone, "a line": line, "branches that share stores": branches, "sub-topologies": apart}
    return {what: topology.build() for what, topology in built.items()}


def _rendered_all(renderer: Callable[[Program], str]) -> dict[str, str]:
    return {what: renderer(program) for what, program in sample_programs().items()}
