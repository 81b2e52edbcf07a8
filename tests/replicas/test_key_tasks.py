"""KeyTasks: the tasks that read the records of a windowed key."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Application, ConfigError, Topology, Windowed, default_partitioner
from penstock.plugins.state.copies.key_tasks import KeyTasks
from penstock.serde import StrSerde

from ..core.tasks import Pass

KEY = Windowed("a", 5, 1005)
BY_KEY, BY_WINDOW = (f"0_{default_partitioner(data, 1000)}" for data in (b"a", b"a" + bytes(7) + b"\x05"))


def of_source(**options: Any) -> KeyTasks:
    topology = Topology().add_source("in", "in", **options).add_processor("p", Pass, "in")
    return KeyTasks(Application("app", topology), 0)


def behind_a_repartition(**options: Any) -> KeyTasks:
    topology = Topology().add_source("in", "in").add_repartition("again", "in", key_serde="windowed:str:1s", **options)
    return KeyTasks(Application("app", topology.add_processor("p", Pass, "again")), 1)


def test_windowed_keys_from_outside_may_be_partitioned_in_two_ways() -> None:
    tasks = of_source(key_serde="windowed:str:1s")
    assert tasks.of(KEY, 1000) == [BY_KEY]
    assert tasks.may_have(KEY, 1000) == sorted({BY_KEY, BY_WINDOW})
    assert of_source(key_serde="str").may_have("a", 1000) == [BY_KEY]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, b"a"),
        ({"partition_by": lambda key: key.key + "!"}, b"a!"),
        ({"partition_by": lambda key: key}, b"a" + bytes(7) + b"\x05"),
        ({"partitioner": lambda topic, record, count: None}, b"a" + bytes(7) + b"\x05"),
    ],
)
def test_the_sinks_of_the_program_say_it(options: Any, expected: bytes) -> None:
    assert behind_a_repartition(**options).of(KEY, 1000) == [f"1_{default_partitioner(expected, 1000)}"]


def by_tenant(topic: str, record: Any, count: int) -> int:
    return int(dict(record.headers)["tenant"]) % count


def test_a_partitioner_that_goes_by_headers_gets_those_of_the_question() -> None:
    tasks = behind_a_repartition(partitioner=by_tenant)
    assert "1_7" in tasks.may_have(KEY, 10, (("tenant", b"7"),))
    with pytest.raises(ConfigError, match="needs more than the key and the headers given"):
        tasks.may_have(KEY, 10)


@pytest.mark.parametrize("part", [None, 1.5])
def test_a_part_that_says_nothing_is_refused(part: Any) -> None:
    tasks = behind_a_repartition(partition_by=lambda key: part)
    with pytest.raises(ConfigError, match="the partitioner of sink 'again-sink' needs more than the key"):
        tasks.of(KEY, 1000)


def test_a_key_that_the_serde_does_not_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="source 'in' has no records with key"):
        of_source(key_serde=StrSerde()).may_have(KEY, 1000)
