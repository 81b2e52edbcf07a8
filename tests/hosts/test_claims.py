"""Claims of slots: which attempt of Spark's task runs the slot, and which leaves it to another executor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log import Log
from penstock.plugins.hosts.claims import Claims, owner_elsewhere
from penstock.plugins.logs.memory import MemoryLog

A, B, C = "1@node-1/11/5/b", "2@node-2/11/7/b", "3@node-3/11/9/b"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return MemoryLog(str(tmp_path), {})


@pytest.fixture
def claims(log: Log) -> Claims:
    return Claims(log, "app", "run-1", 4)


def never(seconds: float) -> None:
    raise AssertionError("waited")


def test_a_claim_counts_in_its_run_and_with_its_number_of_slots(log: Log, claims: Claims) -> None:
    assert claims.owner(2) == ""
    claims.write(2, A)
    assert (claims.owner(2), claims.owner(1)) == (A, "")
    assert Claims(log, "app", "run-2", 4).owner(2) == "", "a claim of another run"
    assert Claims(log, "app", "run-1", 6).owner(2) == "", "a claim of another layout"
    assert Claims(log, "other", "run-1", 4).owner(2) == ""
    claims.write(2, B)
    assert claims.owner(2) == B
    claims.delete(2)
    assert claims.owner(2) == ""


@pytest.mark.parametrize("saved", [b"{}", b"[]", b"not json", b'{"run":"run-1","slots":4,"executor":"x","more":1}'])
def test_a_claim_of_another_release_does_not_count(log: Log, claims: Claims, saved: bytes) -> None:
    log.put_meta("app", "slot-2", saved)
    assert claims.owner(2) == ""


def test_the_layout_is_one_note(log: Log, claims: Claims) -> None:
    claims.write_layout({1: B, 0: A})
    saved = log.get_meta("app", "slots")
    assert saved is not None
    assert json.loads(saved) == {"run": "run-1", "slots": 4, "owners": {"0": A, "1": B}}


def test_a_first_attempt_asks_the_log_nothing(claims: Claims) -> None:
    claims.write(0, C)
    assert owner_elsewhere(0, "", A, 0, claims, wait=never) == ""
    assert owner_elsewhere(0, A, A, 0, claims, wait=never) == ""
    assert owner_elsewhere(0, B, A, 0, claims, wait=never) == B


def test_the_owner_runs_whatever_attempt_it_is(claims: Claims) -> None:
    claims.write(0, B)
    assert owner_elsewhere(0, A, A, 3, claims, wait=never) == ""


def test_with_one_executor_every_attempt_runs() -> None:
    assert owner_elsewhere(0, "", A, 2, None, wait=never) == ""


def test_a_later_attempt_without_a_claim_runs(claims: Claims) -> None:
    assert owner_elsewhere(0, "", A, 1, claims, wait=never) == ""
    claims.write(0, A)
    assert owner_elsewhere(0, "", A, 1, claims, wait=never) == "", "its own claim: the first attempt's host is here"


@pytest.mark.parametrize("planned", ["", B])
def test_a_later_attempt_waits_for_the_executor_that_has_the_slot(claims: Claims, planned: str) -> None:
    claims.write(0, B)
    waits: list[float] = []
    assert owner_elsewhere(0, planned, A, 1, claims, wait_seconds=3, wait=waits.append) == B
    assert sum(waits) == 3


@pytest.mark.parametrize("planned", ["", B])
def test_it_goes_ahead_when_the_driver_orders_a_move_meanwhile(claims: Claims, planned: str) -> None:
    claims.write(0, B)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            claims.delete(0)

    assert owner_elsewhere(0, planned, A, 1, claims, wait=wait) == ""
    assert len(waits) == 3


@given(st.sampled_from(["", A, B]), st.sampled_from([A, B]), st.integers(0, 2), st.sampled_from(["", A, B, C]))
def test_no_two_executors_run_a_slot_that_is_claimed(planned: str, own: str, attempt: int, claimed: str) -> None:
    claims = Claims(MemoryLog("law", {}), "app", "run", 1)
    claims.write(0, claimed)
    left_to = owner_elsewhere(0, planned, own, attempt, claims, wait_seconds=1, wait=lambda seconds: None)
    assert left_to != own
    if attempt and claimed and planned != own:
        assert left_to == ("" if claimed == own else claimed)
