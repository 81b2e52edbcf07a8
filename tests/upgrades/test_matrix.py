"""Each kind of change, there and back, with the host's copy of the state and without it, for both changelogs, against
an account of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.plugins.engine.program.plan import NEW
from tests.processes import ROOT
from tests.rotation import of_today

from .changes import CHANGES, Change, GoesOn, Outcome, Refused
from .page import PAGE, page
from .versions import Version
from .world import Account, World

LOCATIONS = {"directory": "directory:changelog", "topic": "topic:"}
CASES = [
    pytest.param(each, changelog, lost, id=f"{group}: {each.name}-{changelog}-{'lost' if lost else 'kept'}")
    for group, changes in CHANGES.items()
    for each in changes
    for changelog in each.changelogs
    for lost in ((False,) if isinstance(each.there, Refused) else (False, True))
]


GOES_ON = GoesOn()


class Upgrades:
    """Starts versions in a world, one after the other, and compares."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.accounts: dict[str, Account] = {}
        self.last: Version | None = None

    def start(self, version: Version, outcome: Outcome = GOES_ON) -> bool:
        """Start a version, or the last one if it is refused as expected; return whether it was not."""
        world = self.world
        for topic, partitions in version.grown.items():
            world.grow(topic, partitions)
        before = {} if isinstance(outcome, GoesOn) else world.everything()
        self.planned = world.plan(version)
        if isinstance(outcome, GoesOn):
            account = self.accounts.setdefault(version.application, Account())
            for store in outcome.empty:
                account.forget(store)
            self.check_plan(version, account)
            expected = account.start(version, world)
            assert (world.start(version), world.outputs()) == expected
            self.last = version
            return True
        with pytest.raises(PenstockError, match=outcome.message) as refusal:
            world.start(version)
        assert re.search(ADVICE, str(refusal.value)), "it does not say what to do"
        assert world.everything() == before
        assert self.planned.refusal == str(refusal.value) or self.planned.left_to_the_start
        if not version.grown:
            assert self.last is not None
            self.start(self.last)
        return False

    def check_plan(self, version: Version, account: Account) -> None:
        """Compare the plan with what the account says of each store; it knows no host, where stores may be that are
        in no changelog."""
        assert self.planned.refusal is None
        fates = {each.name: each.fate for each in self.planned.stores}
        stores = _stores(version)
        on_hosts = {name for each in (stores, _stores(self.last)) for name, store in each.items() if not store.logged}
        known = set(account.counts) if self.accounts[version.application] is account else set()
        assert {name for name in stores if fates[name] == NEW} - on_hosts == set(stores) - known - on_hosts
        assert set(self.planned.parked) == set(fates) - set(stores) - {each.store.name for each in version.tables}


def _stores(version: Version | None) -> dict[str, Any]:
    return {} if version is None else {store.name: store for flow in version.flows for store in flow.stores}


ADVICE = r"penstock \w+|go back|put it back|give it|add new ones|Undo"


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    change: Change = request.getfixturevalue("change")
    made = World(tmp_path, LOCATIONS[request.getfixturevalue("changelog")], [change.before, change.after])
    yield made
    made.close()


@pytest.mark.parametrize(("change", "changelog", "lost"), of_today(CASES, 2))
def test_there_and_back(change: Change, changelog: str, lost: bool, world: World) -> None:
    upgrades = Upgrades(world)
    world.feed(range(6))
    upgrades.start(change.before)
    if lost:
        world.lose_host()
    if not change.quiet:
        world.feed(range(0, 6, 2))  # of partition 0: the other task has nothing to do
    if change.waiting:
        world.start(change.before, until_done=False)
    world.command(change.first, change.before, change.after)
    went = upgrades.start(change.after, (lost and change.lost_there) or change.there)
    if went:
        planned = upgrades.planned
        if isinstance(change.back, GoesOn):
            assert planned.rollback == ()
        else:
            assert planned.rollback or planned.rollback_after or planned.parked
        if lost:
            world.lose_host()
        world.feed(range(2, 8))  # the entries of k0 and k1 stay as they are
        world.command(change.first_back, change.after, change.before)
        upgrades.start(change.before, (lost and change.lost_back) or change.back)
    if not (lost or change.after.grown):
        # What is left must be whole on another host, too.
        world.lose_host()
        assert upgrades.last is not None
        unlogged = [each.name for flow in upgrades.last.flows for each in flow.stores if not each.logged]
        upgrades.start(upgrades.last, GoesOn(empty=tuple(unlogged)))


def test_there_are_enough_kinds_of_change() -> None:
    assert sum(map(len, CHANGES.values())) > 48


def test_the_page_shows_what_is_tested() -> None:
    assert (ROOT / PAGE).read_text() == page(), "run `python -m tests.upgrades`"
