"""Stores of an application whose commits the log has lost are not empty: queries say so, and answer nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import StoreUnavailableError, run
from penstock.queries import Queries

from ..lost_commits import lose_commits
from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .served import ask, served

KEYS = [f"k{number}" for number in range(7)]


def refusal(ask_store: Any) -> str:
    """Return why a store does not answer; "" if it does."""
    try:
        ask_store()
    except StoreUnavailableError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_after_commits_were_lost_nothing_answers_that_a_store_is_empty(tmp_path: Path, changelog: str) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 2})
        surroundings.put("in", [(key, "v", number) for number in range(3) for key in KEYS])
        made = surroundings.application("app", apps.count(), engine="embedded", changelog=changelog)
        run(made)
        with Queries.from_changelog(made, directory=tmp_path / "earlier") as earlier:
            assert dict(earlier.store("counts", wait="60s").all()) == dict.fromkeys(KEYS, 3)
        lose_commits(surroundings.log, "app")
        with (
            Queries.of_this_machine(made) as here,
            Queries.from_changelog(made, directory=tmp_path / "earlier") as earlier,
            Queries.from_changelog(made, directory=tmp_path / "new") as new,
        ):
            for queries in (here, earlier, new):
                for stale_ok in (False, True):
                    store = queries.store("counts", wait="0ms", stale_ok=stale_ok)
                    wait_until(lambda: "being restored" not in refusal(lambda: store.get("k3")))  # noqa: B023
                    for asked in (lambda: store.get("k3"), lambda: list(store.all()), store.approximate_count):  # noqa: B023
                        assert "its positions were deleted" in refusal(asked)
                assert not queries.can_answer("counts")
                with served(queries) as url:
                    for path in ("stores/counts/get?key=k3", "stores/counts/entries", "stores/counts/changes"):
                        assert ask(url, f"/v1/{path}{'&' if '?' in path else '?'}wait=0")[0] == 503
                    assert ask(url, "/health/ready")[0] == 503


def test_an_application_that_has_committed_nothing_has_empty_stores(tmp_path: Path) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 2})
        surroundings.put("in", [("k3", "v", 1)], 0)  # the other task makes no commit
        made = surroundings.application("app", apps.count(), engine="embedded")
        run(made)
        with Queries.of_this_machine(made) as here, Queries.from_changelog(made, directory=tmp_path / "far") as far:
            for queries in (here, far):
                store = queries.store("counts", wait="60s")
                assert dict(store.all()) == {"k3": 1}
