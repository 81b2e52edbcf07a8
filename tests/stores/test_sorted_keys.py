"""SortedKeys is a sorted set."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.stores import sorted_keys
from penstock.stores.sorted_keys import SortedKeys

KEY = st.binary(max_size=2)


@given(st.sets(KEY), st.lists(st.tuples(st.sampled_from(["add", "remove", "update"]), st.sets(KEY, max_size=5))))
def test_any_order_of_changes(first: set[bytes], steps: list[tuple[str, set[bytes]]]) -> None:
    keys, model = SortedKeys(first), set(first)
    for step, changed in steps:
        if step == "update":
            keys.update(changed - model)
            model |= changed
        else:
            for key in changed:
                if step == "add" and key not in model:
                    keys.add(key)
                    model.add(key)
                if step == "remove" and key in model:
                    keys.remove(key)
                    model.remove(key)
        assert list(keys.range(None, None, reverse=False)) == sorted(model)
        assert len(keys) == len(model)


@given(st.sets(KEY), KEY | st.none(), KEY | st.none(), st.booleans())
def test_any_range(some: set[bytes], start: bytes | None, end: bytes | None, reverse: bool) -> None:
    expected = sorted(key for key in some if (start is None or key >= start) and (end is None or key < end))
    assert list(SortedKeys(some).range(start, end, reverse=reverse)) == (expected[::-1] if reverse else expected)


def test_many_keys_over_many_blocks() -> None:
    random = Random(3)
    keys, model = SortedKeys(), set[bytes]()
    for number in random.sample(range(20_000), 5_000):
        key = b"%05d" % number
        keys.add(key)
        model.add(key)
    assert len(keys._blocks) > 5
    assert max(map(len, keys._blocks)) <= 2 * sorted_keys._BLOCK
    for key in random.sample(sorted(model), 4_500):
        keys.remove(key)
        model.remove(key)
    for _ in range(200):
        start, end = (b"%05d" % random.randrange(20_000) for _ in range(2))
        expected = sorted(key for key in model if start <= key < end)
        assert list(keys.range(start, end, reverse=False)) == expected
        assert list(keys.range(start, end, reverse=True)) == expected[::-1]


@pytest.mark.parametrize("reverse", [False, True])
def test_changes_while_iterating(reverse: bool) -> None:
    random = Random(4)
    keys, model = SortedKeys([b"%04d" % number for number in range(0, 3000, 2)]), set(range(0, 3000, 2))
    seen = []
    touched = set()
    for key in keys.range(None, None, reverse=reverse):
        seen.append(int(key))
        if random.random() < 0.05:
            number = random.randrange(3000)
            touched.add(number)
            if number in model:
                keys.remove(b"%04d" % number)
                model.remove(number)
            else:
                keys.add(b"%04d" % number)
                model.add(number)
    assert seen == sorted(set(seen), reverse=reverse)
    assert set(range(0, 3000, 2)) - touched <= set(seen)
