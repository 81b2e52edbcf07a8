"""`penstock` on a real broker: topics, produce, consume, lag, reset and dlq."""

from __future__ import annotations

import time

import pytest

from penstock.plugins.engine.program import lease
from penstock.plugins.operate.cli.options import open_log
from penstock.plugins.operate.cli.target import load
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..kafka.names import fresh_name
from .applications import COUNTING, run
from .console import Console

TARGET = "on_kafka:application"


@pytest.fixture
def name(console: Console, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of an application; its topics have names that begin with it."""
    name = fresh_name("counting")
    text = COUNTING.replace('Application("counting"', f'Application("{name}"')
    for topic in ("words", "totals", "dead"):
        text = text.replace(f'"{topic}"', f'"{name}.{topic}"')
    console.write("on_kafka.py", text)
    monkeypatch.setenv("PENSTOCK_LOG", f"kafka:{broker.bootstrap}")
    console("topics", "create", f"{name}.words", f"{name}.totals", "--partitions", "2")
    console("topics", "create", f"{name}.dead")
    return name


def drain(console: Console, broker: KafkaBroker) -> None:
    """Run until nothing waits: what one task has committed, the next sees a moment later."""
    deadline = time.monotonic() + 180
    while True:
        run(TARGET, log=f"kafka:{broker.bootstrap}")
        if console.json("lag", TARGET, "--json")["lag"] == 0:
            return
        assert time.monotonic() < deadline


def totals(console: Console, name: str) -> list[str]:
    text = console("consume", f"{name}.totals", "--print-key", "--key-separator", "=", "--value-serde", "int").stdout
    return sorted(text.split())


def test_lag_reset_and_dead_letters(
    console: Console, broker: KafkaBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    console("produce", f"{name}.words", stdin="a\na\nb\nbad one\nc\nworse\n")
    assert console.json("lag", TARGET, "--json")["lag"] == 6
    drain(console, broker)
    assert totals(console, name) == ["a=1", "a=2", "b=1", "c=1"]

    found = {
        each["exception"]: (each["records"], each["waiting"]) for each in console.json("dlq", "list", TARGET, "--json")
    }
    assert found == {"builtins.ValueError": (1, 1), "builtins.KeyError": (1, 1)}
    for options, sent in ((["--exception", "KeyError"], 1), (["--dry-run"], 1), ([], 1), ([], 0)):
        assert console.json("dlq", "replay", f"{name}.dead", *options, "--json")["records"] == sent
    values = console("consume", f"{name}.words").stdout.splitlines()
    assert sorted(values) == ["a", "a", "b", "bad one", "bad one", "c", "worse", "worse"]
    drain(console, broker)

    with open_log(load(TARGET).with_settings(log=f"kafka:{broker.bootstrap}").settings) as log:
        held = log.lease(name, "a driver of ours", 60_000)
        with monkeypatch.context() as patch:
            # It waits as long as the lease of a killed driver can last.
            patch.setattr(lease, "_TTL_SECONDS", 1.0)
            assert "is already run by a driver of ours" in console("reset", TARGET, "--yes", code=1).stderr
        held.release()
    dry = console.json("reset", TARGET, "--dry-run", "--json")
    assert [each["name"] for each in dry["topics"]] == [f"{name}-by-word-repartition"]
    assert console.json("reset", TARGET, "--yes", "--json")["positions"] == dry["positions"]
    assert f"{name}-by-word-repartition" not in console("topics", "list", "--internal", "--names").stdout
    # The ends are those of the log, transaction markers included.
    assert console.json("lag", TARGET, "--json")["lag"] >= 8
    drain(console, broker)
    assert totals(console, name) == sorted(["a=1", "a=2", "b=1", "c=1"] * 2)


def test_reset_to_a_time_and_by_offsets(console: Console, broker: KafkaBroker, name: str) -> None:
    lines = "".join(f'{{"value": "{value}", "timestamp": {at}}}\n' for value, at in (("a", 10), ("b", 20), ("c", 30)))
    console("produce", f"{name}.words", "--json-lines", "--partition", "0", stdin=lines)
    drain(console, broker)
    for options, then in (
        (["--to-time", "15"], 1), (["--to-time", "31"], 3), (["--to-latest"], 3), (["--shift-by", "-2"], 1),
        (["--to-offsets", f"{name}.words:0=2"], 2), (["--to-offsets", f"{name}.words:0=9"], 3), (["--shift-by", "-9"], 0),
    ):  # fmt: skip
        moves = console.json("reset", TARGET, *options, "--yes", "--json")["positions"]
        assert [(each["partition"], each["then"]) for each in moves] == [(0, then), (1, 0)], options
        now = {each["partition"]: each["position"] for each in console.json("lag", TARGET, "--json")["partitions"][:2]}
        assert now == {0: then, 1: 0}, options


def test_a_profile_leaves_the_broker_as_it_is(console: Console, broker: KafkaBroker, name: str) -> None:
    console("produce", f"{name}.words", stdin="a\na\nb\nbad one\nc\n")

    def all_of_it() -> tuple[list[object], object]:
        """Its topics (the broker has those of other tests too, some being deleted) and its lag."""
        topics = console.json("topics", "list", "--internal", "--json")
        return [each for each in topics if each["name"].startswith(name)], console.json("lag", TARGET, "--json")

    before = all_of_it()
    assert len(before[0]) >= 3
    found = console.json("profile", TARGET, "--json")
    assert (found["records"], found["error"]) == (5, None)
    counted = next(each for each in found["nodes"] if each["name"] == "count")
    assert (counted["records_in"], counted["stores"][0]["calls"]) == (4, {"get": 8, "put": 4})
    assert all_of_it() == before
