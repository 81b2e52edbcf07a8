"""Replicas that one thread follows: what one has to read does not stop the others, and the program's stores change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, StoreUnavailableError, World, run
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.state.queries.followed_copies import FollowedCopies
from penstock.queries import Queries
from penstock.world import ThreadTicker

from ..replicas.every_kind import INPUT, STORES, Writer, application
from ..spark import apps
from ..spark.surroundings import Surroundings


def test_a_restore_does_not_stop_the_other_replicas(tmp_path: Path) -> None:
    """While one replica was restored, the others had no later versions, and soon did not answer at all."""
    clock = count()
    passes: list[Callable[[], object]] = []

    def ticker(name: str, seconds: float, call: Callable[[], object]) -> ThreadTicker:
        """The test makes the passes."""
        passes.append(call)
        return ThreadTicker(name, 86_400.0, lambda: None)

    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 3, "out": 3})
        application = surroundings.application("app", apps.count(), engine="embedded")

        def commit(at: int) -> None:
            surroundings.put("in", [(f"k{number}", "v", at) for number in range(30)])
            run(application)

        def copies(world: World) -> FollowedCopies:
            return FollowedCopies(application, surroundings.log, [0], ["counts"], tmp_path / "copies", world)

        commit(0)
        with closing(copies(World(ticker=ticker))):
            passes.pop()()
        shutil.rmtree(tmp_path / "copies" / "0_0")
        for at in range(1, 6):
            commit(at)
        answering: list[set[str]] = []

        def seconds() -> float:
            """Each look at the clock takes a second."""
            if passes:
                answering.append({each.id for each in tasks if found.has(each, "counts")})
            return float(next(clock))

        with closing(copies(World(seconds=seconds, ticker=ticker))) as found:
            follow = passes.pop()
            tasks = list(found.tasks(0).values())
            passes.append(follow)
            follow()
            passes.clear()
            assert [each.id for each in tasks] == ["0_0", "0_1", "0_2"]
            assert all(found.has(each, "counts") for each in tasks)
        assert {"0_1", "0_2"} in answering, "they answer while the first is restored"


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_the_stores_of_the_next_program_come_and_go_with_it(
    tmp_path: Path, changelog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers of the next program are started before it runs; they had no new store until they were started again."""
    every = list(STORES)

    def program(stores: list[Any]) -> Application:
        monkeypatch.setattr("tests.replicas.every_kind.STORES", stores)
        monkeypatch.setattr("tests.replicas.every_kind.NAMES", {each.name for each in stores})
        return application(tmp_path, changelog, f"local:{tmp_path}/log", store_backend="lmdb")

    whole, part = program(every), program(every[1:])
    with closing(open_log(part.settings)) as log, Queries.from_changelog(whole) as queries:
        writer = Writer(part, log)
        for number, stores in enumerate((every[1:], every, every[1:])):
            if number:
                writer.worker.close()
                writer.application = prepare(program(stores), log).application
                writer.worker = writer._new()
            writer.commit([("a", str(number))])
            bounds: dict[str, Any] = {"at_least": log.end_offsets([INPUT]), "wait": "60s"}
            assert queries.store("versions", **bounds).get("a").value == str(number)
            if number == 0:
                with pytest.raises(StoreUnavailableError, match="its replica does not have the store yet"):
                    queries.store("plain", wait="0ms").get("a")
            elif stores is every:
                assert queries.store("plain", **bounds).get("a") == str(number)
        writer.worker.close()
