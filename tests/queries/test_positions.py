"""A reader of changes continues at its position, or it is told that it has to read the store again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import World, run
from penstock.client import Client, QueryError
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.state.queries import subscription
from penstock.plugins.state.queries.copies import Bounds
from penstock.plugins.state.queries.stores import keys_of, subscribed
from penstock.plugins.state.queries.subscription import Subscription, token_of
from penstock.plugins.state.transfer.reshard import plan_reshard, reshard
from penstock.queries import ChangesEndedError, Queries
from penstock.world import ThreadTicker

from ..replicas.every_kind import Writer, application
from ..reshard.runs import lease
from ..spark.surroundings import Surroundings
from .served import served
from .test_resharded import KEYS
from .test_resharded import application as counting


def test_who_breaks_off_within_the_first_parts_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It continued before the first commit, with a later snapshot: what was deleted since stayed in its picture."""
    calls: dict[str, Callable[[], object]] = {}

    def ticker(name: str, seconds: float, call: Callable[[], object]) -> ThreadTicker:
        calls[name] = call
        return ThreadTicker(name, 86_400.0, lambda: None)

    def follow(after: str | None) -> Subscription:
        reading = queries.reading("plain", Bounds())
        made = subscribed(reading, keys_of(reading, None, None, None, None), None, after, lambda: None)
        calls["penstock-changes"]()
        return made

    monkeypatch.setattr(subscription, "MOST_WAITING_BYTES", 100)
    made = application(tmp_path, "directory:changelog?chunk_bytes=100", f"local:{tmp_path}/log", store_backend="lmdb")
    with closing(open_log(made.settings)) as log:
        writer = Writer(made, log)
        with closing(writer.worker), Queries.of_this_machine(made, World(ticker=ticker)) as queries:
            reader = follow(None)
            assert reader.has_begun and set(reader.position().values()) == {None}
            writer.commit([(f"k{number:02}", "v" * 20) for number in range(30)])
            writer.snapshot_and_clean(snapshot=True)
            calls["penstock-changes"]()
            picture = {each["key"]: each["value"] for each in reader.take()}
            assert 0 < len(picture) < 30
            position = token_of(reader.position())
            queries.feed.remove(reader)
            writer.commit([(key, "") for key in picture])
            writer.snapshot_and_clean(snapshot=True)
            again = follow(position)
            with pytest.raises(ChangesEndedError, match="read the store again") as ended:
                for _ in range(60):  # more than there are parts
                    again.take()
                    calls["penstock-changes"]()
            assert ended.value.code == "gap"


def test_a_position_of_other_tasks_is_a_gap(tmp_path: Path) -> None:
    """As of a client whose server was started again after a resharding: it was refused as a wrong request."""
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 4, "in7": 7, "out": 1})
        before, log = counting(surroundings, "in", "topic:"), surroundings.log
        surroundings.put("in", [(key, "v", 1) for key in KEYS])
        run(before)
        with Queries.of_this_machine(before) as queries, queries.store("counts", wait="60s").changes() as changes:
            position = changes.position
        after = counting(surroundings, "in7", "topic:")
        reshard(plan_reshard(after, log, 7, sources={"in": "in7"}), log, lease(after, log))
        run(after)
        with Queries.of_this_machine(after) as queries, served(queries) as url, Client(url) as client:
            readers: list[Any] = [
                queries.store("counts", wait="60s").changes(after=position),
                client.store("counts").changes(after=position),
            ]
            for reader in readers:
                with pytest.raises((ChangesEndedError, QueryError), match="another number of tasks") as refused:
                    next(reader)
                error: Any = refused.value
                assert error.code == "gap"
