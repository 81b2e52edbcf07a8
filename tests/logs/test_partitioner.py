"""Kafka's default partitioner, against the Java client's own vectors and against itself."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import groupby, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import default_partitioner
from penstock.plugins.logs import partitioner
from penstock.plugins.logs.partitioner import NULL_KEY_RUN, Partitioner, partitions_for_keys, runs_of_partitions
from penstock.program.partitioning import unsigned_murmur2
from penstock.record import OutputBatch


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (bytes([ord("a"), ord("b"), ord("c")]), 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, expected: int) -> None:
    """The vectors of Kafka's UtilsTest."""
    assert unsigned_murmur2(key) == expected & 0xFFFFFFFF
    assert partitions_for_keys([key], 1000).tolist() == [(expected & 0x7FFFFFFF) % 1000]


@given(st.lists(st.binary(max_size=20)), st.integers(1, 10_000))
def test_many_keys_hash_as_one(keys: list[bytes], partitions: int) -> None:
    assert partitions_for_keys(keys, partitions).tolist() == [default_partitioner(key, partitions) for key in keys]


@given(
    st.lists(st.none() | st.binary(max_size=5)),
    st.integers(1, 300),
    st.integers(2, 5),
    st.integers(0, 10_000),
)
def test_every_record_goes_where_it_belongs_in_order(
    keys: list[bytes | None], repeat: int, partitions: int, appended: int
) -> None:
    keys = keys * repeat
    numbers = list(range(len(keys)))
    batch = OutputBatch("t", keys, [b"%d" % n for n in numbers], numbers, [((str(n), None),) for n in numbers])
    shares = Partitioner(partitions).split(batch, lambda: appended)
    assert [share.partition for share in shares] == sorted({share.partition for share in shares})
    placed: dict[int, int] = {}
    for share in shares:
        assert list(share.timestamps) == sorted(share.timestamps)
        assert list(share.keys) == [keys[n] for n in share.timestamps]
        assert list(share.values) == [b"%d" % n for n in share.timestamps]
        assert share.headers is not None and list(share.headers) == [((str(n), None),) for n in share.timestamps]
        placed.update(dict.fromkeys(share.timestamps, share.partition))
    assert sorted(placed) == numbers
    nulls = 0
    for number, key in enumerate(keys):
        if key is None:
            assert placed[number] == (appended + nulls) // NULL_KEY_RUN % partitions
            nulls += 1
        else:
            assert placed[number] == default_partitioner(key, partitions)


@given(st.integers(1, 9))
def test_records_that_any_partition_may_have_are_spread(partitions: int) -> None:
    chosen = list(islice(runs_of_partitions(partitions), 3 * partitions * NULL_KEY_RUN))
    assert [len(list(run)) for _, run in groupby(chosen)] == (
        [NULL_KEY_RUN] * 3 * partitions if partitions > 1 else [3 * NULL_KEY_RUN]
    )
    assert Counter(chosen) == dict.fromkeys(range(partitions), 3 * NULL_KEY_RUN)


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner, "_CACHED_KEYS", 100)
    chosen = Partitioner(3)
    for number in range(300):
        key = b"%d" % number
        for _ in range(2):
            (share,) = chosen.split(OutputBatch("t", [key], [b""], [0]), lambda: 0)
            assert share.partition == default_partitioner(key, 3)
        assert len(chosen._cache) <= 100
    chosen.split(OutputBatch("t", [b"x" * 10_000], [b""], [0]), lambda: 0)
    assert all(key is None or len(key) < 1000 for key in chosen._cache)


def test_one_partition_hashes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test driver's topics have one each."""
    monkeypatch.setattr(partitioner, "default_partitioner", None)
    monkeypatch.setattr(partitioner, "partitions_for_keys", None)
    batch = OutputBatch("t", [b"k"] * 500, [b"v"] * 500, [0] * 500)
    (share,) = Partitioner(1).split(batch, lambda: 0)
    assert share.keys is batch.keys


def test_numpy_is_imported_for_many_keys_only() -> None:
    """A run of a few records starts sooner without; the partitions are the same."""
    program = """
import sys
from penstock import OutputBatch
from penstock.plugins.logs.partitioner import Partitioner

keys = [b"%d" % number for number in range(1000)]
chosen = Partitioner(7)
for batch in range(11):
    shares = chosen.split(OutputBatch("t", keys, keys, [0] * 1000), lambda: 0)
    assert ("numpy" in sys.modules) == (batch == 10), batch
    found = [(share.partition, list(share.keys)) for share in shares]
    assert batch == 0 or found == before
    before = found
"""
    subprocess.run([sys.executable, "-c", program], check=True)
