"""Times and schedules that an earlier release saved by the names of nodes: taken over, or refused; and the way back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import IncompatibleStateError
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.upgrade.saved_stores import drop_stores
from penstock.program.compatibility import BY_NODE, FORMAT

from .dsl_programs import FIVE, IN_FRONT, PLAIN, PROGRAMS, program
from .restarts import Restarts, phases
from .test_dsl import unchanged

NUMBERED = [each for each in PROGRAMS if program(each).build().build().fingerprint()["format"] == FORMAT]
"""The verbs that save anything by the names of nodes in an earlier release."""


def nodes(builder: StreamsBuilder) -> list[str]:
    """Return the nodes of a program for which anything is saved."""
    return [name for name, node in builder.build().build().nodes.items() if getattr(node, "saved_as", ())]


@pytest.mark.parametrize("verb", NUMBERED)
def test_what_it_saved_is_taken_over(verb: str, tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    rows = phases()
    sent = [restarts.start(program(verb), rows[0])]
    restarts.forget_stores(program(verb))
    versions = [PLAIN, IN_FRONT, PLAIN]
    sent += [restarts.start(program(verb, each), some) for each, some in zip(versions, rows[1:], strict=True)]
    assert sent == unchanged(verb)


RENUMBERED = [each for each in NUMBERED if nodes(program(each)) != nodes(program(each, IN_FRONT))]


@pytest.mark.parametrize("verb", RENUMBERED)
def test_under_other_numbers_the_first_start_is_refused(verb: str, tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    rows = phases()
    sent = [restarts.start(program(verb), rows[0])]
    restarts.forget_stores(program(verb))
    before = restarts.saved()
    with pytest.raises(IncompatibleStateError, match="(store|node) '.*Start the program as it was once"):
        restarts.start(program(verb, IN_FRONT))
    assert restarts.saved() == before
    sent += [restarts.start(program(verb), some) for some in rows[1:]]
    assert sent == unchanged(verb)


@pytest.mark.parametrize("verb", [each for each in NUMBERED if each not in RENUMBERED])
def test_with_named_nodes_the_first_start_may_have_a_verb_more(verb: str, tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    rows = phases()
    sent = [restarts.start(program(verb), rows[0])]
    restarts.forget_stores(program(verb))
    sent += [restarts.start(program(verb, IN_FRONT), some) for some in rows[1:]]
    assert sent == unchanged(verb)


def two(*stores: str) -> StreamsBuilder:
    """Return a program with a windowed count of one stream for each store."""
    builder = StreamsBuilder()
    left = builder.stream("left")
    for store in stores:
        counts = left.group_by_key().windowed_by(FIVE).count(store)
        counts.to_stream().map(lambda key, n: (key.key, str(n)), with_key=True).to("out", value_serde="str")
    return builder


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (("b",), "store 'a' is no longer"),
        (("new", "b"), "store 'a' is no longer"),
        (("new", "a", "b"), "times of store 'a', 'b' under"),
    ],
)
def test_a_node_never_takes_what_another_store_had(after: tuple[str, ...], message: str, tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    restarts.start(two("a", "b"), phases()[0])
    restarts.forget_stores(two("a", "b"))
    with pytest.raises(IncompatibleStateError, match=f"{message}.*penstock stores drop"):
        restarts.start(two(*after))


def test_a_store_that_was_dropped_has_no_times(tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    restarts.start(two("a", "b"), [("left", "k", "v", 100_000)])
    drop_stores(restarts.application(two("a", "b")), restarts.log, ["a"], lambda: None)
    assert restarts.start(two("a", "b"), [("left", "k", "v", 1_000)]) == [("out", b"k", b"1", 1_000)]


def test_a_parked_store_keeps_its_times(tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    restarts.start(two("a", "b"), [("left", "k", "v", 100_000)])
    restarts.start(two("a"))
    assert restarts.start(two("a", "b"), [("left", "k", "v", 1_000)]) == []


def test_earlier_releases_refuse_what_is_saved_by_stores(tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    restarts.start(two("a"))
    note = json.loads(restarts.log.get_meta("app", "program") or b"")
    assert note["fingerprint"]["format"] == FORMAT > BY_NODE


def test_a_program_without_such_times_starts_in_earlier_releases_too(tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    restarts.start(program("count"))
    note = json.loads(restarts.log.get_meta("app", "program") or b"")
    assert note["fingerprint"]["format"] == BY_NODE
