"""Claims of slots: which attempt of Spark's task runs the slot, and which leaves it to another executor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log import Log
from penstock.plugins.engine.host.claims import Claims, SlotLayout, owner_elsewhere
from penstock.plugins.logs.memory import MemoryLog

A, B, C = "1@node-1/11/5/b", "2@node-2/11/7/b", "3@node-3/11/9/b"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return MemoryLog(str(tmp_path), {})


@pytest.fixture
def claims(log: Log) -> Claims:
    return Claims(log, "app", SlotLayout("run-1", 4))


def never(seconds: float) -> None:
    raise AssertionError("waited")


def test_a_claim_counts_in_its_run_and_with_its_number_of_slots(log: Log, claims: Claims) -> None:
    assert claims.owner(2) == ""
    claims.write(2, A)
    assert (claims.owner(2), claims.owner(1)) == (A, "")
    assert Claims(log, "app", SlotLayout("run-2", 4)).owner(2) == "", "a claim of another run"
    assert Claims(log, "app", SlotLayout("run-1", 6)).owner(2) == "", "a claim of another layout"
    assert Claims(log, "other", SlotLayout("run-1", 4)).owner(2) == ""
    claims.write(2, B)
    assert claims.owner(2) == B
    claims.delete(2)
    assert claims.owner(2) == ""


@pytest.mark.parametrize("saved", [b"{}", b"[]", b"not json", b'{"run":"run-1","slots":4,"executor":"x","more":1}'])
def test_a_claim_of_another_release_does_not_count(log: Log, claims: Claims, saved: bytes) -> None:
    log.put_meta("app", "slot-2", saved)
    assert claims.owner(2) == ""


def refuse() -> Claims:
    raise AssertionError("the log was asked")


def elsewhere(claims: Claims, planned: str, attempt: int, wait: Callable[[float], None] = never) -> str:
    """What executor A finds about slot 0."""
    return owner_elsewhere(0, planned, A, attempt, lambda: claims, wait_seconds=30, wait=wait)


def test_where_the_plan_names_an_owner_a_first_attempt_asks_the_log_nothing() -> None:
    assert owner_elsewhere(0, A, A, 0, refuse, wait_seconds=30, wait=never) == ""
    assert owner_elsewhere(0, B, A, 0, refuse, wait_seconds=30, wait=never) == B


def test_the_owner_in_the_plan_runs_whatever_attempt_it_is() -> None:
    assert owner_elsewhere(0, A, A, 3, refuse, wait_seconds=30, wait=never) == ""


def test_where_the_plan_names_no_owner_the_claim_counts(claims: Claims) -> None:
    assert elsewhere(claims, "", 0) == ""
    claims.write(0, A)
    assert elsewhere(claims, "", 0) == elsewhere(claims, "", 1) == ""
    claims.write(0, B)
    assert elsewhere(claims, "", 0) == B, "the plan was made before the driver read the report of B"


@pytest.mark.parametrize("planned", ["", B])
def test_a_later_attempt_waits_for_the_executor_that_has_the_slot(claims: Claims, planned: str) -> None:
    claims.write(0, B)
    waits: list[float] = []
    assert elsewhere(claims, planned, 1, waits.append) == B
    assert sum(waits) == 30


@pytest.mark.parametrize("planned", ["", B])
def test_it_goes_ahead_when_the_driver_orders_a_move_meanwhile(claims: Claims, planned: str) -> None:
    claims.write(0, B)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if sum(waits) == 12:
            claims.delete(0)

    assert elsewhere(claims, planned, 1, wait) == ""
    assert sum(waits) == 12


def test_a_later_attempt_waits_for_the_claim_of_the_first_one(claims: Claims) -> None:
    waits: list[float] = []
    assert elsewhere(claims, "", 1, waits.append) == "", "the first attempt has ended before its host claimed the slot"
    assert sum(waits) == 10

    def wait(seconds: float) -> None:
        claims.write(0, B)

    assert elsewhere(claims, "", 1, wait) == B


def test_an_old_claim_does_not_count_against_the_plan(claims: Claims) -> None:
    claims.write(0, A)
    assert elsewhere(claims, B, 1, lambda seconds: None) == B


@given(st.sampled_from(["", A, B]), st.sampled_from([A, B]), st.integers(0, 2), st.sampled_from(["", A, B, C]))
def test_a_slot_that_another_executor_has_is_left_to_it(planned: str, own: str, attempt: int, claimed: str) -> None:
    claims = Claims(MemoryLog("law", {}), "app", SlotLayout("run", 1))
    claims.write(0, claimed)
    left_to = owner_elsewhere(0, planned, own, attempt, lambda: claims, wait_seconds=1, wait=lambda seconds: None)
    if planned == own:
        assert left_to == ""
    elif planned:
        assert left_to == ("" if attempt and not claimed else planned)
    else:
        assert left_to == ("" if claimed == own else claimed)
