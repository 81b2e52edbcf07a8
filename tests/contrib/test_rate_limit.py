"""contrib.rate_limit: a token bucket for each key."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.contrib.rate_limit as rate_limit
from penstock import WALL_CLOCK_TIME, Topology
from penstock.errors import TopologyError
from penstock.plugins.testing import TopologyTestDriver

STEP = st.sampled_from([0, 0, 0, 1, 3, 7, 19, -5])
"""Bursts, pauses and late records."""


def topology(**options: Any) -> Topology:
    built = Topology().add_source("in", "in").add_processor("few", "contrib.rate_limit", "in", **options)
    return built.add_sink("out", "out", "few")


@pytest.mark.parametrize("reopen", [False, True])
@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["a", "b", None]), STEP), max_size=24),
    limit=st.sampled_from([4, 3, 2, 1]),
    per=st.integers(5, 25),
)
def test_a_record_passes_where_its_bucket_has_a_token(
    reopen: bool, steps: list[tuple[str | None, int]], limit: int, per: int
) -> None:
    expected: list[tuple[str | None, int]] = []
    tokens: dict[str, tuple[Fraction, int]] = {}
    records = [(key, max(0, at)) for (key, _), at in zip(steps, accumulate(step for _, step in steps), strict=True)]
    now = 0
    for key, at in records:
        now = max(now, at)
        if key is not None:
            had, since = tokens.get(key, (Fraction(limit), now))
            had = min(Fraction(limit), had + Fraction((now - since) * limit, per))
            tokens[key] = had - (had >= 1), now
            if had < 1:
                continue
        expected.append((key, at))
    with TopologyTestDriver(topology(limit=limit, per=f"{per}ms"), reopen_tasks=reopen) as driver:
        for key, at in records:
            driver.pipe("in", key, "v", timestamp=at)
        assert [(record.key, record.timestamp) for record in driver.read_all("out")] == expected


def test_a_bucket_never_has_more_tokens_than_its_limit() -> None:
    with TopologyTestDriver(topology(limit=4, per="20ms")) as driver:
        for at in (0, 19, 19, 19, 19, 19, 19):
            driver.pipe("in", "k", "v", timestamp=at)
        assert [record.timestamp for record in driver.read_all("out")] == [0, 19, 19, 19, 19]


def test_tokens_may_come_back_by_the_wall_clock() -> None:
    with TopologyTestDriver(topology(limit=2, per="10s", clock=WALL_CLOCK_TIME), reopen_tasks=True) as driver:
        for number in range(3):
            driver.pipe("in", "k", str(number), timestamp=number * 60_000)
        driver.advance_wall_clock("5s")
        for number in (3, 4):
            driver.pipe("in", "k", str(number), timestamp=0)
        assert [record.value for record in driver.read_all("out")] == ["0", "1", "3"]


def test_what_is_limited_may_be_another_part_of_the_record() -> None:
    with TopologyTestDriver(topology(limit=1, per="1h", by=lambda record: record.value[0])) as driver:
        for value in ("anna", "ben", "alma"):
            driver.pipe("in", "k", value, timestamp=0)
        assert [record.value for record in driver.read_all("out")] == ["anna", "ben"]


@pytest.mark.parametrize("limit", [0, True, 1.5, "3"])
def test_a_wrong_limit_is_refused(limit: Any) -> None:
    with pytest.raises(TopologyError, match="limit must be a whole number of at least 1, found"):
        TopologyTestDriver(topology(limit=limit, per="1h"))


def test_the_example_of_its_readme_runs() -> None:
    readme = Path(rate_limit.__file__).with_name("README.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(block, namespace)
    with TopologyTestDriver(namespace["topology"]) as driver:
        for minute in (0, 1, 2, 3, 21, 22):
            driver.pipe("alerts", "disk", str(minute), timestamp=minute * 60_000)
        assert [record.value for record in driver.read_all("pages")] == ["0", "1", "2", "21"]
