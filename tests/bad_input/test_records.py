"""Records that cannot be read: what the message says, and what becomes of the records around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    DeadLetter,
    Decision,
    Failure,
    PenstockError,
    Record,
    Retry,
    SerdeError,
    TopicPartition,
    TopologyError,
    skip,
    skip_on_invalid_timestamp,
)

from .world import ORDERS, Contents, Given, MakeWorld, World, says, totals

FIRST = TopicPartition("orders", 0)
SECOND = TopicPartition("orders", 1)

POISON: list[tuple[str, dict[str, Any], Given, list[str]]] = [
    ("not text", {}, ("ann", b"\xff\xfe", 2), ["serde 'str': b'\\xff\\xfe' is not UTF-8", "name the serde it was " "written with"]),
    ("a key that is not text", {}, (b"\x80", "4", 2), ["serde 'str': b'\\x80' is not UTF-8"]),
    ("wrong JSON", {"value_serde": "json"}, ("ann", '{"amount": ', 2), ["serde 'json': not JSON: ", "near b'{\"amount\": '"]),
    ("another number of bytes", {"value_serde": "int"}, ("ann", b"\x01", 2), ["serde 'int': expected 8 bytes that it " "wrote, found 1"]),
    ("no timestamp", {}, ("ann", "4", -1), ["key 'ann' has the invalid timestamp -1", "set a " "timestamp_extractor", "skip_on_invalid_timestamp"]),
]  # fmt: skip


def with_poison(make_world: MakeWorld, source: dict[str, Any], poison: Given | None, **settings: Any) -> World:
    """Records of which the third of partition 0 is the poison; None leaves it out."""
    world = make_world(totals(**source), **settings)
    serde = source.get("value_serde", "str")
    orders = [
        (key, int(value).to_bytes(8) if serde == "int" else value, time) for time, (key, value) in enumerate(ORDERS)
    ]
    before, after = orders[:2], orders[2:]
    world.produce("orders", *before, *([] if poison is None else [poison]), *after)
    return world


Without = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="session")
def without_poison(tmp_path_factory: pytest.TempPathFactory) -> Without:
    """What comes out of the same records without the poison."""
    known: dict[Any, Any] = {}

    def find(source: dict[str, Any]) -> Any:
        serde = source.get("value_serde")
        if serde not in known:
            directory = tmp_path_factory.mktemp("without")
            twin = with_poison(lambda *given, **settings: World(directory / "world", *given, **settings), source, None)
            twin.run()
            known[serde] = results(twin.contents())
        return known[serde]

    return find


def results(contents: Contents) -> Any:
    """What has to be the same whether or not there was a poison record: everything but positions and the input
    itself."""
    return contents.stores, {place: rows for place, rows in contents.topics.items() if place[0] == "totals-by-customer"}


@pytest.mark.parametrize(("source", "poison", "parts"), [case[1:] for case in POISON], ids=[case[0] for case in POISON])
def test_a_poison_record_fails_and_is_skipped_or_kept_aside_if_asked(
    make_world: MakeWorld,
    without_poison: Without,
    caplog: pytest.LogCaptureFixture,
    source: dict[str, Any],
    poison: Given,
    parts: list[str],
) -> None:
    world = with_poison(make_world, source, poison)
    for _ in range(2):  # it stays the next record, however often one tries
        with pytest.raises(SerdeError) as caught:
            world.run()
        says(
            caught.value,
            "application 'shop', task 0_0, node 'orders', at topic 'orders' partition 0 offset 2: ",
            *parts,
            "Mend it and start again: nothing since the last commit counts, and nothing is lost",
            "Or set deserialization_handler (skip, DeadLetter(TOPIC), Retry())",
        )
        assert position(world, FIRST) == 2
    world.create("poison", partitions=1)
    world.change(deserialization_handler=DeadLetter("poison"))
    world.run()
    found = world.contents()
    assert results(found) == without_poison(source)
    assert [row[:2] for row in found.topics["poison", 0]] == [
        tuple(each if isinstance(each, bytes) else each.encode() for each in poison[:2])
    ]
    assert (
        "node 'orders', at topic 'orders' partition 0 offset 2: " in caplog.text and ": sent to poison" in caplog.text
    )

    caplog.clear()
    skipping = with_poison(make_world, source, poison, deserialization_handler=skip)
    dropped = sum(report.dropped for report in skipping.run())
    assert dropped == 1
    assert results(skipping.contents()) == results(found)
    says(caplog.text, "task 0_0, node 'orders', at topic 'orders' partition 0 offset 2: ", "Error", ": skipped")
    assert parts[0] not in caplog.text, "what a record contains is not logged"


def position(world: World, partition: TopicPartition) -> int | None:
    with world.open() as log:
        return log.committed("shop", [partition])[partition]


def test_a_dead_letter_tells_where_it_came_from(make_world: MakeWorld) -> None:
    world = with_poison(make_world, {}, POISON[0][2], deserialization_handler=DeadLetter("poison"))
    world.create("poison", partitions=1)
    world.run()
    with world.open() as log:
        (batch,) = log.fetch(TopicPartition("poison", 0), 0, 1, 1000)
    assert batch.headers is not None
    headers = dict(batch.headers[0])
    assert headers["__streams.errors.topic"] == b"orders"
    assert headers["__streams.errors.partition"] == b"0"
    assert headers["__streams.errors.offset"] == b"2"
    says(headers["__streams.errors.exception"], "SerdeError")
    says(headers["__streams.errors.message"], "is not UTF-8")
    says(headers["__streams.errors.stacktrace"], "UnicodeDecodeError", "SerdeError")


@pytest.mark.parametrize("handler", [DeadLetter("poisson"), Retry(1, "0s", Retry(1, "0s", DeadLetter("poisson")))])
def test_a_dead_letter_topic_that_is_missing_is_an_error_at_the_start(
    make_world: MakeWorld, without_poison: Without, handler: Any
) -> None:
    world = with_poison(make_world, {}, POISON[0][2], deserialization_handler=handler)
    world.create("poison", partitions=1)
    with pytest.raises(TopologyError) as caught:
        world.run()
    says(
        caught.value,
        "the log has no topic 'poisson' (dead letters)",
        "create it (`penstock topics create`) or correct the name",
    )
    world.create("poisson", partitions=1)
    world.run()
    found = world.contents()
    assert results(found) == without_poison({})
    assert [row[:2] for row in found.topics["poisson", 0]] == [(b"ann", b"\xff\xfe")]


def test_what_a_failing_task_reads_others_do_not_wait_for(make_world: MakeWorld) -> None:
    world = with_poison(make_world, {}, POISON[0][2])
    with world.workers() as (log, workers):
        for worker in workers:
            if worker.id.partition == 0:
                with pytest.raises(SerdeError):
                    worker.run_batch({FIRST: 6}, 0)
            else:
                worker.run_batch({SECOND: 1}, 0)
        assert log.committed("shop", [FIRST, SECOND]) == {FIRST: 2, SECOND: 1}


def test_a_record_is_tried_again_and_then_given_up(make_world: MakeWorld, without_poison: Without) -> None:
    asked: list[int] = []

    def count(failure: Failure) -> Decision:
        asked.append(failure.attempt)
        return Retry(attempts=2, delay="1ms", then=skip)(failure)

    world = with_poison(make_world, {}, POISON[0][2], deserialization_handler=count)
    world.run()
    assert asked == [1, 2, 3]
    assert results(world.contents()) == without_poison({})


def test_a_source_may_skip_invalid_timestamps_by_itself(make_world: MakeWorld, without_poison: Without) -> None:
    world = with_poison(make_world, {"timestamp_extractor": skip_on_invalid_timestamp}, POISON[-1][2])
    assert sum(report.dropped for report in world.run()) == 1
    assert results(world.contents()) == without_poison({})


# ---------------------------------------------------------------- what should help, and fails itself


@pytest.mark.parametrize("wrong", [None, "2026-11-21", 1.5, 1 << 63])
def test_a_timestamp_extractor_that_returns_no_timestamp(
    make_world: MakeWorld, undisturbed: Contents, wrong: Any
) -> None:
    world = make_world(
        totals(
            timestamp_extractor=lambda record, partition_time, now: wrong if record.value == "4" else record.timestamp
        )
    )
    world.produce("orders", *ORDERS)
    with pytest.raises(SerdeError) as caught:
        world.run()
    says(
        caught.value,
        "node 'orders', at topic 'orders' partition 0 offset 2: the timestamp extractor returned ",
        repr(wrong),
        "2**63 - 1",
    )
    world.change(totals())
    world.run()
    assert world.contents() == undisturbed


def test_a_timestamp_extractor_that_raises(make_world: MakeWorld, undisturbed: Contents) -> None:
    def by_year(record: Record, partition_time: int, now: int) -> int:
        return {"3": 0, "5": 1}[record.value]

    world = make_world(totals(timestamp_extractor=by_year))
    world.produce("orders", *ORDERS)
    with pytest.raises(SerdeError) as caught:
        world.run()
    says(caught.value, "node 'orders', at topic 'orders' partition 0 offset 2: KeyError: '4'")
    world.change(totals())
    world.run()
    assert world.contents() == undisturbed


def nothing(failure: Failure) -> Any:
    return None


def raising(failure: Failure) -> Decision:
    raise OSError("no pager")


@pytest.mark.parametrize(
    ("handler", "said"), [(nothing, "returned None, expected Fail(), Skip()"), (raising, "raised OSError: no pager")]
)
def test_a_handler_that_gives_no_decision(
    make_world: MakeWorld, without_poison: Without, handler: Any, said: str
) -> None:
    world = with_poison(make_world, {}, POISON[0][2], deserialization_handler=handler)
    with pytest.raises(PenstockError) as caught:
        world.run()
    says(
        caught.value,
        "application 'shop', task 0_0, node 'orders', at topic 'orders' partition 0 offset 2: the value: serde 'str'",
        "The deserialization handler, asked what to do about that, ",
        said,
    )
    assert position(world, FIRST) == 2
    world.change(deserialization_handler=skip)
    world.run()
    assert results(world.contents()) == without_poison({})
