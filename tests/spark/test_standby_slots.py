"""Where the copies of a slot's tasks are, and that a lost slot goes there; without Spark."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConfigError, Settings
from penstock.plugins.engine.host.executor_identity import ExecutorIdentity, node_name
from penstock.plugins.engine.host.reports import SlotMessage
from penstock.plugins.spark.placement import LOST, Executor, SlotOwners, standby_slots
from penstock.plugins.state.copies.settings import rack_of

OWNERS = st.dictionaries(
    st.integers(0, 20), st.builds(lambda number: f"{number}@node-{number // 2}/1/2/b", st.integers(0, 9)), min_size=1
)


@given(OWNERS, st.integers(1, 3))
def test_each_slot_has_copies_on_other_machines(owners: dict[int, str], copies: int) -> None:
    found = standby_slots(owners, copies)
    machines = {node_name(owner) for owner in owners.values()}
    assert found.keys() == owners.keys()
    for slot, keepers in found.items():
        places = [node_name(owners[each]) for each in keepers]
        assert len(set(places)) == len(places) == min(copies, len(machines) - 1)
        assert node_name(owners[slot]) not in places


@given(OWNERS, st.integers(1, 2))
def test_a_machine_that_goes_changes_only_what_concerns_it(owners: dict[int, str], copies: int) -> None:
    gone = node_name(next(iter(owners.values())))
    left = {slot: owner for slot, owner in owners.items() if node_name(owner) != gone}
    before, after = standby_slots(owners, copies), standby_slots(left, copies)
    for slot in left:
        places = {node_name(owners[each]) for each in before[slot]}
        if gone not in places:
            assert {node_name(owners[each]) for each in after[slot]} == places


@given(OWNERS, st.integers(1, 3))
def test_copies_are_in_other_racks(owners: dict[int, str], copies: int) -> None:
    """As far as there are racks; then a rack has as few of a slot and its copies as can be."""
    racks = "node-0=a, node-1=a, node-2=b, node-*=c"
    rack = {node_name(owner): rack_of(racks, node_name(owner)) for owner in owners.values()}
    assert set(rack.values()) <= {"a", "b", "c"}
    for slot, keepers in standby_slots(owners, copies, racks).items():
        places = [node_name(owners[each]) for each in (slot, *keepers)]
        assert len(set(places)) == len(places) == 1 + min(copies, len(rack) - 1)
        used = Counter(rack[each] for each in places)
        assert len(used) == min(len(places), len(set(rack.values())))


def test_a_machine_is_what_spark_calls_one() -> None:
    """Two workers of one host name, such as containers, have different machines if Spark names them so."""
    identities = [ExecutorIdentity(str(each), "same", 10, "1", "b", f"10.0.{each}.5").text for each in (1, 2, 2)]
    owners = dict(enumerate(identities))
    assert standby_slots(owners, 1) == {0: [1], 1: [0], 2: [0]}
    assert rack_of("10.0.1.*=a, *=b", node_name(owners[0])) == "a"


def test_racks_that_are_no_rules_are_refused() -> None:
    for wrong in ("a", "node-1=", "=a", "node-1=a,", 3):
        with pytest.raises(ConfigError, match="setting 'racks': expected PATTERN=RACK"):
            Settings(racks=wrong)


def test_a_lost_slot_goes_where_its_copies_are() -> None:
    """Also where another executor has more room."""
    identities = {str(number): f"{number}@node-{number}/1/2/b" for number in range(4)}
    executors = {number: Executor(2) for number in identities}
    owners = SlotOwners(4)
    owners.note_executors(executors)
    owners.note_batch([SlotMessage(int(number), identity) for number, identity in identities.items()], 0)
    copies = owners.keep_copies(1)
    assert copies == standby_slots(owners.owners, 1)
    assert owners.keep_copies(0) == {}
    for slot in range(4):
        [keeper] = copies[slot]
        roomy = next(str(each) for each in range(4) if each not in (slot, keeper))
        present = {name: each for name, each in executors.items() if name != str(slot)} | {roomy: Executor(8)}
        moves = owners.note_executors(present)
        assert [(each.slot, each.reason) for each in moves] == [(slot, LOST)]
        assert owners.targets()[slot] == str(keeper)
        assert owners.keep_copies(1) == copies, "its copies stay until it has an owner"
        owners.note_executors(executors)
        owners.note_batch([SlotMessage(slot, identities[str(slot)])], 1)
        assert len(owners.owners) == 4


def test_a_slot_that_moves_for_room_goes_where_there_is_room() -> None:
    identities = {str(number): f"{number}@node-{number}/1/2/b" for number in range(2)}
    owners = SlotOwners(4)
    owners.note_executors({"0": Executor(2), "1": Executor(2)})
    owners.note_batch([SlotMessage(slot, identities["0" if slot < 3 else "1"]) for slot in range(4)], 0)
    assert owners.keep_copies(1)[0] == [3]
    owners.note_executors({"0": Executor(2), "1": Executor(1), "2": Executor(4)})
    [move] = owners.even_out()
    assert owners.targets()[move.slot] == "2"
