"""A few rounds of the operator of a Spark pipeline; and its oracle, which must see what is wrong."""

from __future__ import annotations

import pytest

from ..rotation import WHOLE, by_turns
from . import operator


@pytest.mark.spark
@by_turns(6, WHOLE)
def test_kills_change_nothing() -> None:
    tally = operator.run(len(operator.FAULTS), seed=1)
    assert tally.verdict.is_good, tally
    assert tally.faults.total() == len(operator.FAULTS)


def test_the_oracle_sees_lost_doubled_and_miscounted_rows() -> None:
    right = []
    counts: dict[str, int] = {}
    for file in range(3):
        for key, value in operator._rows(file):
            counts[key] = counts.get(key, 0) + 1
            right.append((key, f"{value}:{counts[key]}"))
    assert operator.judged(iter(right), 3).is_good
    assert operator.judged(iter(right[1:]), 3) == operator.Verdict(1, 0, ["k0"])
    assert operator.judged(iter([*right, right[5]]), 3) == operator.Verdict(0, 1, [])
    key, text = right[9]
    value, _, count = text.rpartition(":")
    wrong = [*right[:9], (key, f"{value}:{int(count) + 1}"), *right[10:]]
    assert operator.judged(iter(wrong), 3) == operator.Verdict(0, 0, [key])
