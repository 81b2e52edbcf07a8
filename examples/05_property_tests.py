r"""Running statistics and their laws. Teaches property tests: laws for every input, tried on inputs from hypothesis.

$ python -m pytest examples/05_property_tests.py
$ penstock topics create values summaries
$ printf 'a:3\na:1.5\n' | penstock produce values --key-separator : --value-serde float
$ penstock run examples/05_property_tests.py:application
$ penstock consume summaries
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Application, Processor, ProcessorContext, Record, Topology, key_value_store
from penstock.testing import TopologyTestDriver

Summary = list[float]
"""Count, lowest and highest value."""


class Statistics(Processor):
    """Keeps count, lowest and highest value of each key, and forwards them with every record."""

    def init(self, context: ProcessorContext) -> None:
        """Look up the store."""
        super().init(context)
        self.summaries = context.get_store("summaries")

    def process(self, record: Record) -> None:
        """Take one value in."""
        summary = add(self.summaries.get(record.key), record.value)
        self.summaries.put(record.key, summary)
        self.context.forward(record.with_value(summary))


def add(summary: Summary | None, value: float) -> Summary:
    """Return a summary with one more value."""
    if summary is None:
        return [1, value, value]
    count, lowest, highest = summary
    return [count + 1, min(lowest, value), max(highest, value)]


topology = (
    Topology()
    .add_source("values", "values", value_serde="float")
    .add_processor("statistics", Statistics, "values", stores=[key_value_store("summaries", key_serde="str")])
    .add_sink("summaries", "summaries", "statistics", value_serde="json")
)

application = Application("statistics", topology)


# ---------------------------------------------------------------- its laws

INPUTS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(-1e6, 1e6), st.integers(0, 100)), max_size=12)
"""Keys, values and timestamps, not in order."""

few = settings(max_examples=15, deadline=None)


def run(inputs: list[tuple[str, float, int]], **options: Any) -> tuple[dict[str, Summary], list[Record]]:
    """Return the content of the store after `inputs`, and the outputs."""
    with TopologyTestDriver(application, **options) as driver:
        for key, value, timestamp in inputs:
            driver.pipe("values", key, value, timestamp)
        return dict(driver.store("summaries").all()), driver.read_all("summaries")


@few
@given(INPUTS)
def test_the_state_is_the_fold_of_the_input(inputs: list[tuple[str, float, int]]) -> None:
    """The best test: the processor must agree with plain Python."""
    values: dict[str, list[float]] = {}
    for key, value, _ in inputs:
        values.setdefault(key, []).append(value)
    assert run(inputs)[0] == {key: [len(own), min(own), max(own)] for key, own in values.items()}


@few
@given(INPUTS, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(inputs: list[tuple[str, float, int]], random: Any) -> None:
    """So late records are harmless."""
    shuffled = list(inputs)
    random.shuffle(shuffled)
    assert run(shuffled)[0] == run(inputs)[0]


@few
@given(INPUTS)
def test_opening_the_task_again_changes_nothing(inputs: list[tuple[str, float, int]]) -> None:
    """Spark may move a task to another process between any two commits. Only stores survive that."""
    assert run(inputs, reopen_tasks=True) == run(inputs)


@few
@given(INPUTS)
def test_each_input_is_answered_once_and_the_last_answer_is_the_state(inputs: list[tuple[str, float, int]]) -> None:
    """The last output of each key equals the content of the store."""
    state, outputs = run(inputs)
    assert [record.key for record in outputs] == [key for key, _, _ in inputs]
    assert {record.key: record.value for record in outputs} == state
