"""contrib.dedupe: the first record of each id passes, and no other."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.contrib.dedupe as dedupe
from penstock import WALL_CLOCK_TIME, Record, Topology, key_value_store
from penstock.plugins.testing import TopologyTestDriver


def topology(**options: Any) -> Topology:
    built = Topology().add_source("in", "in").add_sink("all", "all", "in")
    built.add_processor("once", "contrib.dedupe", "in", stores=[key_value_store("seen")], **options)
    return built.add_sink("out", "out", "once")


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from("xy")), max_size=10))
def test_the_first_of_each_id_passes(records: list[tuple[str | None, str]]) -> None:
    with TopologyTestDriver(topology(), reopen_tasks=True) as driver:
        for key, value in records:
            driver.pipe("in", key, value)
        firsts = [
            each
            for at, each in enumerate(records)
            if each[0] is None or each[0] not in [key for key, _ in records[:at]]
        ]
        assert [(record.key, record.value) for record in driver.read_all("out")] == firsts


def first_letter(record: Record) -> str | None:
    return record.value[0] if record.value else None


def test_the_id_may_be_another_part_of_the_record() -> None:
    with TopologyTestDriver(topology(by=first_letter)) as driver:
        for value in ("anna", "ben", "alma", None, None):
            driver.pipe("in", "k", value)
        assert [record.value for record in driver.read_all("out")] == ["anna", "ben", None, None]


def test_an_id_is_forgotten_after_the_stores_ttl() -> None:
    built = Topology().add_source("in", "in")
    built.add_processor("once", "contrib.dedupe", "in", stores=[key_value_store("ids", ttl="10s")], store="ids")
    with TopologyTestDriver(built.add_sink("out", "out", "once")) as driver:
        for second in (0, 5, 30):
            driver.pipe("in", "k", f"at {second}", timestamp=second * 1000)
        assert [record.value for record in driver.read_all("out")] == ["at 0", "at 30"]


@pytest.mark.parametrize("prolong", [False, True])
@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("aab"), st.sampled_from([6, 9, 10, 0, -7])), max_size=12))
def test_the_window_counts_from_the_stream_time_of_an_arrival(prolong: bool, steps: list[tuple[str, int]]) -> None:
    built = (
        Topology().add_source("in", "in").add_processor("once", "contrib.dedupe", "in", window="10ms", prolong=prolong)
    )
    expected: list[tuple[str, int]] = []
    begun: dict[str, int] = {}
    records = [(key, max(0, at)) for (key, _), at in zip(steps, accumulate(step for _, step in steps), strict=True)]
    now = -1
    for key, at in records:
        now = max(now, at)
        is_first = key not in begun or now - begun[key] >= 10
        if is_first:
            expected.append((key, at))
        if is_first or prolong:
            begun[key] = now
    with TopologyTestDriver(built.add_sink("out", "out", "once"), reopen_tasks=True) as driver:
        for key, at in records:
            driver.pipe("in", key, "v", timestamp=at)
        assert [(record.key, record.timestamp) for record in driver.read_all("out")] == expected


def test_the_window_may_pass_by_the_wall_clock() -> None:
    built = Topology().add_source("in", "in")
    built.add_processor("once", "contrib.dedupe", "in", window="10s", clock=WALL_CLOCK_TIME)
    with TopologyTestDriver(built.add_sink("out", "out", "once")) as driver:
        driver.pipe("in", "k", "first", timestamp=0)
        driver.pipe("in", "k", "later by its timestamp", timestamp=60_000)
        driver.advance_wall_clock("10s")
        driver.pipe("in", "k", "later by the clock", timestamp=0)
        assert [record.value for record in driver.read_all("out")] == ["first", "later by the clock"]


def test_the_example_of_its_readme_runs() -> None:
    readme = Path(dedupe.__file__).with_name("README.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(block, namespace)
    with TopologyTestDriver(namespace["topology"]) as driver:
        for minute in (0, 59, 90):
            driver.pipe("orders", "o-1", f"{minute}", timestamp=minute * 60_000)
        assert [record.value for record in driver.read_all("unique-orders")] == ["0", "90"]
