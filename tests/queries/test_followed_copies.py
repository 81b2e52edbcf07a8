"""Replicas that one thread follows: what one of them has to read does not stop the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

from penstock import World, run
from penstock.plugins.queries.followed_copies import FollowedCopies
from penstock.world import ThreadTicker

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
