"""Arguments of a Topology and of an Application that cannot be meant are refused when they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Application, DeadLetter, PenstockError, Processor, Record, Retry, Topology
from penstock.clock import duration_ms
from penstock.plugins.testing import TopologyTestDriver

from .world import Total, says, totals

Misuse = Callable[[Any], Any]


def named(topic: str) -> int:
    return 0


class Waits(Processor):
    def __init__(self, wait: Any) -> None:
        self.wait = duration_ms(wait, "wait")

    def process(self, record: Record) -> None:
        self.context.forward(record)


def application(**settings: Any) -> Application:
    return Application("shop", totals(), settings)


REFUSED: dict[str, tuple[Misuse, tuple[str, ...]]] = {
    "no stores": (
        lambda t: t.add_processor("p", Total, "in", stores=None), ("processor 'p'", "stores is a list", "None"),
    ),
    "a list of sources": (lambda t: t.copartition(["in", "b"]), ("copartition", "names of", "copartition('in', 'b')")),
    "a partitioner of one": (
        lambda t: t.add_sink("o", "o", "in", partitioner=named),
        ("sink 'o': partitioner is called with (topic, record, partitions)", "named"),
    ),
    "a chooser of one": (lambda t: t.add_sink("o", named, "in"), ("sink 'o': topic is called with (record, metadata)",)),
    "an extractor of one": (
        lambda t: t.add_source("b", "b", timestamp_extractor=named),
        ("source 'b': timestamp_extractor is called with (record, partition_time, wall_clock)",),
    ),
    "an extractor of the application": (
        lambda t: application(timestamp_extractor=named),
        ("setting 'timestamp_extractor'", "is called with (record, partition_time, wall_clock)"),
    ),
    "a handler of nothing": (
        lambda t: application(processing_handler=lambda: None), ("setting 'processing_handler'", "called with (failure)"),
    ),
    "a handler's class": (
        lambda t: application(production_handler=DeadLetter), ("setting 'production_handler'", "class DeadLetter", "DeadLetter(...)"),
    ),
    "a wrapper of one": (
        lambda t: application(processor_wrapper=lambda processor: processor),
        ("setting 'processor_wrapper'", "is called with (node, processor)"),
    ),
    "attempts as text": (lambda t: Retry("3"), ("Retry: attempts", "'3'")),  # type: ignore[arg-type]
    "a delay without a unit": (lambda t: Retry(3, 1), ("Retry: delay", "does not say its unit")),  # type: ignore[arg-type]
    "a topic for a handler": (lambda t: Retry(3, "1s", "dead"), ("Retry: then", "'dead'", "DeadLetter('dead')")),  # type: ignore[arg-type]
    "dead letters to nowhere": (lambda t: DeadLetter(None), ("DeadLetter", "topic", "None")),  # type: ignore[arg-type]
    "dead letters to no topic": (lambda t: DeadLetter("a b"), ("DeadLetter", "topic", "'a b'")),
    "settings as text": (
        lambda t: Application("shop", totals(), "shop.toml"),  # type: ignore[arg-type]
        ("application 'shop'", "expected a mapping of settings", "'shop.toml'"),
    ),
    "an option of a processor": (
        lambda t: TopologyTestDriver(t.add_processor("p", Waits, "in", wait=5)), ("node 'p'", "wait: expected", "5"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_refused(case: str) -> None:
    misuse, parts = REFUSED[case]
    with pytest.raises(PenstockError) as caught:
        misuse(Topology().add_source("in", "in"))
    says(caught.value, *parts)


NO_SUCH_VERB = {
    "addSource": "add_source",
    "addStateStore": "add_store",
    "add_state_store": "add_store",
    "connectProcessorAndStateStores": "connect(PROCESSOR, STORE)",
    "stream": "StreamsBuilder().stream(...)",
    "add_procesor": "did you mean 'add_processor'",
}


@pytest.mark.parametrize("verb", NO_SUCH_VERB)
def test_a_verb_that_a_topology_does_not_have_says_what_to_write(verb: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(Topology(), verb)
    says(caught.value, f"'Topology' object has no attribute '{verb}'", NO_SUCH_VERB[verb])
