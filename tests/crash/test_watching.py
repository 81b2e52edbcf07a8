"""The harness' comparison of status and metrics finds wrong counts, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from .watching import Scraped, is_between


def metrics(records_in: int, commits: int, lag: int = 0) -> Scraped:
    counts = {"records_in": records_in, "records_out": 5, "commits": commits}
    found: Scraped = {("lag", ""): lag}
    found.update({(f"penstock_task_{name}_total", "0_0"): count for name, count in counts.items()})
    return found


def told(records_in: int | None, commits: int, lag: int = 0) -> dict[str, Any]:
    counts = {} if records_in is None else {"records_in": records_in, "records_out": 5, "commits": commits}
    return {"lag": lag, "tasks": [{"task": "0_0", **counts}]}


@pytest.mark.parametrize(
    ("status", "is_right"),
    [
        # A punctuator has committed before the status was written, and another one after it.
        (told(7, 11), True),
        (told(7, 10), True),
        (told(8, 11), False),
        (told(6, 11), False),
        (told(7, 22), False),
        (told(7, 11, lag=1), False),
        (told(None, 0), False),
    ],
)
def test_a_count_of_the_status_is_between_those_of_the_metrics(status: dict[str, Any], is_right: bool) -> None:
    assert is_between(status, metrics(7, 10), metrics(7, 12)) == is_right
    assert not is_between(status, {}, metrics(7, 12)), "the driver does not serve them yet"
