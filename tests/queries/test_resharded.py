"""Queries of an application that was resharded meanwhile: no key is looked up in the task that it had before."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigError, StoreUnavailableError, TopicPartition, Topology, World, key_value_store, run
from penstock.client import Client, QueryError
from penstock.plugins.engine.program.stored_id import stored_application
from penstock.plugins.state.queries.noted_servers import TaskServer, note_task_servers
from penstock.plugins.state.transfer.reshard import plan_reshard, reshard
from penstock.queries import ChangesEndedError, Queries

from ..reshard.runs import lease
from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .served import ask, served

ENTRIES, GET = "/v1/stores/counts/entries", "/v1/stores/counts/get"
KEYS = [f"k{number}" for number in range(40)]


def application(surroundings: Surroundings, topic: str, changelog: str, **settings: Any) -> Any:
    topology = (
        Topology()
        .add_source("in", topic)
        .add_processor("count", apps.Count, "in", stores=[key_value_store("counts", key_serde="str")])
        .add_sink("out", "out", "count")
    )
    return surroundings.application("app", topology, engine="embedded", changelog=changelog, **settings)


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_keys_are_found_in_their_new_tasks(tmp_path: Path, changelog: str) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 4, "in7": 7, "out": 1})
        before = application(surroundings, "in", changelog)
        surroundings.put("in", [(key, "v", 1) for key in KEYS])
        run(before)
        with (
            Queries.of_this_machine(before) as here,
            Queries.from_changelog(before) as far,
            served(here) as url,
        ):
            for queries in (here, far):
                assert queries.store("counts", wait="60s").get_many(KEYS) == [1] * len(KEYS)
            page = ask(url, ENTRIES, given={"limit": "30", "wait": "30000"})[1]["page"]
            after = application(surroundings, "in7", changelog)
            log = surroundings.log
            reshard(plan_reshard(after, log, 7, sources={"in": "in7"}), log, lease(after, log))
            surroundings.put("in7", [(key, "v", 2) for key in KEYS])
            run(after)
            ends = dict(surroundings.log.end_offsets([TopicPartition("in7", number) for number in range(7)]))
            for queries in (here, far):
                _ask_until(queries, ends)
            status, answer = ask(url, ENTRIES, given={"page": page, "wait": "30000"})
            assert (status, answer["error"]["code"]) == (410, "page_gone"), "its keys are in other tasks now"


def test_what_is_new_since_a_resharding_is_known(tmp_path: Path) -> None:
    """For a second it was refused for good: by the note of the tasks of before."""
    now = [0.0]
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 4, "in7": 7, "out": 1})
        before, log = application(surroundings, "in", "topic:"), surroundings.log
        surroundings.put("in", [(key, "v", 1) for key in KEYS])
        run(before)
        with Queries.of_this_machine(before, World(seconds=lambda: now[0])) as here, served(here) as url:
            assert here.store("counts", wait="0ms").get_many(KEYS) == [1] * len(KEYS)
            after = application(surroundings, "in7", "topic:")
            reshard(plan_reshard(after, log, 7, sources={"in": "in7"}), log, lease(after, log))
            run(after)
            now[0] += 0.4
            at_least = {TopicPartition("in7", 0): 0}
            assert here.store("counts", wait="0ms", at_least=at_least).get_many(KEYS) == [1] * len(KEYS)
            now[0] += 0.4
            assert here.store("counts", wait="0ms", task="0_6").approximate_count() > 0
            with pytest.raises(ConfigError, match="do not read in; they read in7"):
                here.store("counts", at_least={TopicPartition("in", 0): 0})
            given = [("key", KEYS[0]), ("at_least", "in:0:0")]
            status, answer = ask(url, GET, given=given)
            assert status == 400 and "they read in7" in answer["error"]["message"]


def test_readers_of_changes_are_told(tmp_path: Path) -> None:
    """Also where nobody else asks: they waited for changes of the tasks of before, without end."""
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 4, "in7": 7, "out": 1})
        before, log = application(surroundings, "in", "topic:"), surroundings.log
        surroundings.put("in", [(key, "v", 1) for key in KEYS])
        run(before)
        with (
            Queries.of_this_machine(before) as here,
            served(here) as url,
            Client(url) as client,
            here.store("counts", wait="60s").changes() as near,
            client.store("counts").changes() as far,
        ):
            after = application(surroundings, "in7", "topic:")
            reshard(plan_reshard(after, log, 7, sources={"in": "in7"}), log, lease(after, log))
            wait_until(lambda: near._subscription.has_ended, "the end of the changes")
            with pytest.raises(ChangesEndedError, match="was resharded: follow its changes from now on") as ended:
                next(near)
            assert ended.value.code == "gap"
            with pytest.raises(QueryError, match="was resharded") as refused:
                next(far)
            assert refused.value.code == "gap"


def test_servers_forward_after_a_resharding(tmp_path: Path) -> None:
    """The server of a run has the application under the id that the log has, others as it was given to them."""
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 4, "in7": 7, "out": 1})
        log = surroundings.log
        surroundings.put("in", [(key, "v", 1) for key in KEYS])
        run(application(surroundings, "in", "topic:"))
        after = application(surroundings, "in7", "topic:", state_dir=str(tmp_path / "one"))
        reshard(plan_reshard(after, log, 7, sources={"in": "in7"}), log, lease(after, log))
        run(after)
        lacking = application(surroundings, "in7", "topic:", state_dir=str(tmp_path / "two"))
        given, stored = {"key": KEYS[0]}, stored_application(after, log)
        for owning in (stored, after):
            with (
                Queries.of_this_machine(owning) as has, served(has) as owner,
                Queries.of_this_machine(lacking) as lacks, served(lacks) as url,
            ):  # fmt: skip
                note_task_servers(stored.id, log, [TaskServer(owner, socket.gethostname())])
                wait_until(lambda: ask(url, GET, given=given)[1].get("value") == 1, "the other server's answer")


def _ask_until(queries: Queries, ends: dict[TopicPartition, int]) -> None:
    """Ask until all keys have their new counts: each answer before that is the old one, or none."""
    store = queries.store("counts", wait="60s")
    while True:
        try:
            found = store.get_many(KEYS)
        except StoreUnavailableError:
            continue
        assert set(found) <= {1, 2}
        if found == [2] * len(KEYS):
            return
