"""SlotOwners: which executor has a slot; laws over random reports and losses, without Spark."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.engine.host.reports import SlotMessage
from penstock.plugins.spark.placement import (
    _MOST_BATCHES,
    LOST,
    PLACED_ELSEWHERE,
    REBALANCED,
    TAKEN_OVER,
    Executor,
    SlotMove,
    SlotOwners,
)

A, B, C = "1@node-1/11/5/b", "2@node-2/11/7/b", "3@node-3/11/9/b"
SLOTS = 5
TWO = {"1": Executor(2), "2": Executor(2)}


def owners_of(slots: Mapping[int, str], executors: Mapping[str, Executor] = TWO) -> SlotOwners:
    owners = SlotOwners(SLOTS)
    owners.note_executors(executors)
    assert owners.note_batch([SlotMessage(slot, executor) for slot, executor in slots.items()], 0) == []
    return owners


def test_a_slot_belongs_to_the_executor_that_ran_it_first() -> None:
    owners = owners_of({0: A, 1: B})
    assert owners.owners == {0: A, 1: B}
    assert not owners.moves


def test_a_report_from_elsewhere_moves_nothing() -> None:
    owners = owners_of({0: A, 1: B})
    for batch in range(_MOST_BATCHES - 1):
        assert owners.note_batch([SlotMessage(0, B, elsewhere=A), SlotMessage(1, B)], batch) == []
    assert owners.note_batch([SlotMessage(0, A)], 50) == []
    for batch in range(_MOST_BATCHES - 1):
        assert owners.note_batch([SlotMessage(0, B, elsewhere=A)], 60 + batch) == [], "the owner ran it in between"
    assert owners.owners == {0: A, 1: B}


def test_a_slot_that_spark_keeps_elsewhere_moves_and_more_slowly_the_next_time() -> None:
    owners = owners_of({0: A})
    report = [SlotMessage(0, B, elsewhere=A)]
    moves = [owners.note_batch(report, batch) for batch in range(_MOST_BATCHES)]
    assert moves[-1] == [SlotMove(0, A, PLACED_ELSEWHERE)]
    assert not any(moves[:-1])
    assert owners.owners == {}
    assert owners.targets()[0] == "2", "A has as much room, and Spark keeps the slot away from it"
    owners.note_batch([SlotMessage(0, B)], 0)
    back = [SlotMessage(0, A, elsewhere=B)]
    moves = [owners.note_batch(back, batch) for batch in range(2 * _MOST_BATCHES)]
    assert moves[-1]
    assert not any(moves[:-1])
    assert owners.moves == {PLACED_ELSEWHERE: 2}


def test_long_batches_elsewhere_move_a_slot_sooner() -> None:
    owners = owners_of({0: A})
    report = [SlotMessage(0, B, elsewhere=A)]
    assert [bool(owners.note_batch(report, now)) for now in (30, 100, 179, 181)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("executors", "reason"),
    [
        ({"2": Executor(2)}, LOST),
        ({"1": Executor(2, "executor decommissioned"), "2": Executor(2)}, "executor decommissioned"),
    ],
)
def test_an_executor_that_is_gone_or_unfit_loses_its_slots_at_once(executors: dict[str, Executor], reason: str) -> None:
    owners = owners_of({0: A, 1: B, 2: A})
    assert owners.note_executors(executors) == [SlotMove(0, A, reason), SlotMove(2, A, reason)]
    assert owners.owners == {1: B}
    assert owners.note_executors(executors) == [], "once"
    owners.note_batch([SlotMessage(0, A), SlotMessage(2, B, elsewhere=A)], 1)
    assert owners.owners == {1: B}, "a late report of an executor that is gone"
    owners.note_batch([SlotMessage(0, B), SlotMessage(2, B)], 2)
    assert owners.owners == {0: B, 1: B, 2: B}
    assert owners.moves == {reason: 2}


def test_a_slot_whose_owner_reported_nothing_belongs_to_the_claim() -> None:
    owners = owners_of({})
    assert owners.note_batch([SlotMessage(0, B, elsewhere=A)], 0) == []
    assert owners.owners == {0: A}


def test_a_claim_of_an_executor_that_is_gone_is_deleted_again() -> None:
    owners = owners_of({}, {"2": Executor(2)})
    assert owners.note_batch([SlotMessage(0, B, elsewhere=A)], 0) == [SlotMove(0, A, LOST)]
    assert (owners.owners, owners.moves) == ({}, {})


def test_a_batch_that_was_planned_before_a_move_changes_nothing() -> None:
    owners = owners_of(dict.fromkeys(range(5), A))
    owners.even_out()
    late = [SlotMessage(4, A, planned=A), SlotMessage(3, B, elsewhere=A, planned=A)]
    assert owners.note_batch(late, 1) == []
    assert owners.owners == dict.fromkeys(range(3), A)
    owners.note_batch([SlotMessage(4, A), SlotMessage(3, B, planned=A)], 2)
    assert owners.owners[4] == A, "Spark gave it to A once more"
    assert owners.owners[3] == B, "a later attempt of a batch that was planned before took it over"


def test_an_executor_with_more_slots_than_cores_gives_to_one_with_cores_to_spare() -> None:
    owners = owners_of(dict.fromkeys(range(5), A))
    elsewhere = [SlotMessage(slot, B, elsewhere=A) for slot in range(5)]
    assert owners.note_batch(elsewhere, 0) == [SlotMove(0, A, REBALANCED), SlotMove(1, A, REBALANCED)], (
        "B has two cores"
    )
    owners.note_batch([SlotMessage(0, B), SlotMessage(1, B)], 1)
    assert owners.note_batch([SlotMessage(2, B, elsewhere=A)], 2) == [], "now B has no core to spare"
    assert owners.moves == {REBALANCED: 2}


def test_slots_are_evened_out_as_far_as_there_is_room() -> None:
    owners = owners_of(dict.fromkeys(range(5), A))
    assert owners.even_out() == [SlotMove(4, A, REBALANCED), SlotMove(3, A, REBALANCED)]
    assert owners.targets() == {0: "1", 1: "1", 2: "1", 3: "2", 4: "2"}
    assert owners.even_out() == []
    owners.note_batch([SlotMessage(3, B), SlotMessage(4, B)], 1)
    assert owners.even_out() == [], "one slot too many, and no room"


@pytest.mark.parametrize(
    "executors",
    [
        {"1": Executor(2)},
        {"1": Executor(2), "2": Executor(2, "executor excluded by Spark")},
        {"1": Executor(5), "2": Executor(5)},
    ],
)
def test_slots_stay_where_nobody_could_take_them_or_nothing_is_crowded(executors: dict[str, Executor]) -> None:
    owners = owners_of(dict.fromkeys(range(5), A), executors)
    assert owners.even_out() == []
    assert set(owners.targets().values()) == {"1"}


def test_slots_without_an_owner_go_where_there_is_most_room() -> None:
    owners = SlotOwners(SLOTS)
    assert owners.targets() == {}, "nothing is known of executors"
    owners.note_executors({"1": Executor(1), "2": Executor(4), "3": Executor(9, "executor decommissioned")})
    assert owners.targets() == {0: "2", 1: "2", 2: "2", 3: "1", 4: "2"}


def test_room_that_slots_on_their_way_will_take_is_not_given_twice() -> None:
    owners = owners_of(dict.fromkeys(range(5), A))
    assert len(owners.even_out()) == 2
    assert owners.note_batch([SlotMessage(0, B, elsewhere=A, planned=A)], 1) == []


def test_another_attempt_that_ran_the_slot_has_it() -> None:
    owners = owners_of({0: A})
    assert owners.note_batch([SlotMessage(0, B)], 1) == [SlotMove(0, A, TAKEN_OVER)]
    assert owners.owners == {0: B}


def test_a_new_layout_gives_every_slot_up() -> None:
    owners = owners_of({1: B, 0: A})
    assert owners.forget() == [SlotMove(0, A, REBALANCED), SlotMove(1, B, REBALANCED)]
    assert (owners.owners, owners.moves) == ({}, {REBALANCED: 2})


def test_in_local_mode_the_one_executor_has_all_slots() -> None:
    owners = SlotOwners(SLOTS)
    local = "driver@host/1/2/3"
    for now in range(3):
        assert owners.note_batch([SlotMessage(slot, local) for slot in range(8)], now) == []
    assert set(owners.owners.values()) == {local}


identities = st.sampled_from([A, B, C])
reports = st.builds(
    lambda slot, executor, left_to, planned: SlotMessage(
        slot, executor, "" if left_to == executor else left_to, planned=planned
    ),
    st.integers(0, 3), identities, st.one_of(st.just(""), identities), st.one_of(st.just(""), identities),
)  # fmt: skip
clusters = st.dictionaries(
    st.sampled_from("123"), st.builds(Executor, st.integers(1, 3), st.sampled_from(["", "executor decommissioned"]))
)


@given(st.lists(st.one_of(st.lists(reports, max_size=4), clusters), max_size=40))
def test_a_move_names_the_owner_before_it_and_no_owner_is_unfit(
    events: list[list[SlotMessage] | dict[str, Executor]],
) -> None:
    owners = SlotOwners(SLOTS)
    cluster: dict[str, Executor] | None = None
    counted = 0
    for now, event in enumerate(events):
        before = dict(owners.owners)
        if isinstance(event, dict):
            cluster = event
            moves = owners.note_executors(event)
        else:
            # One report a slot and batch, as in Spark.
            moves = owners.note_batch({each.slot: each for each in event}.values(), now)
        # Where a slot has no owner, a move is the claim of an executor that is gone.
        counted += len([move for move in moves if move.slot in before])
        assert sum(owners.moves.values()) == counted
        for move in moves:
            assert before.get(move.slot, move.executor) == move.executor
            assert owners.owners.get(move.slot) != move.executor
        for slot, owner in before.items():
            assert owners.owners.get(slot) == owner or slot in {move.slot for move in moves}
        for owner in owners.owners.values():
            assert cluster is None or (owner[0] in cluster and not cluster[owner[0]].unfit)


@given(st.lists(st.sampled_from([A, B, C]), min_size=4, max_size=4), st.integers(1, 6))
def test_wherever_spark_keeps_a_slot_it_runs_there_in_the_end(placed: list[str], cores: int) -> None:
    """Spark's choice becomes the owner, whatever the layout was before, as long as Spark stays with it."""
    cluster = {each[0]: Executor(cores) for each in (A, B, C)}
    owners = owners_of({slot: (A, B, C)[slot % 3] for slot in range(4)}, cluster)
    for now in range(_MOST_BATCHES + 2):
        batch = []
        for slot, executor in enumerate(placed):
            owner = owners.owners.get(slot, "")
            batch.append(SlotMessage(slot, executor, elsewhere="" if owner in ("", executor) else owner))
        owners.note_batch(batch, now)
    assert owners.owners == dict(enumerate(placed))
