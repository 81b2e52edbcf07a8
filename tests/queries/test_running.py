"""Queries of an application that runs on the embedded engine, in this process and in task hosts that are killed."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import (
    ConfigError,
    Processor,
    Record,
    StoreUnavailableError,
    TopicPartition,
    Topology,
    key_value_store,
    run,
)
from penstock.client import Client, QueryError
from penstock.errors import RuntimeUnavailableError
from penstock.plugins.dsl.builder import StreamsBuilder
from penstock.plugins.engine.host.slot_engine import NICE
from penstock.plugins.engine.program.run_status import StatusTopic
from penstock.plugins.state.queries.run_server import _Server
from penstock.queries import Queries
from penstock.world import World

from ..console.browsing import Reader
from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until

KEYS = [f"k{number}" for number in range(7)]


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 4, "out": 4})
        yield made


def application(surroundings: Surroundings, **settings: Any) -> Any:
    return surroundings.application("app", apps.count(), engine="embedded", commit_interval="10ms", **settings)


def put(surroundings: Surroundings, rounds: int) -> None:
    surroundings.put("in", [(key, "v", number) for number in range(rounds) for key in KEYS])


def ends(surroundings: Surroundings) -> dict[TopicPartition, int]:
    return dict(surroundings.log.end_offsets(surroundings.partitions("in")))


def hosts(surroundings: Surroundings) -> set[int]:
    """Return the processes of both task hosts; none before both are known."""
    found = StatusTopic(surroundings.log, "app").read()
    processes = set() if found is None else {each.process for each in found.hosts}
    return processes if len(processes) == 2 else set()


@pytest.mark.parametrize("settings", [{}, {"store_backend": "memory"}, {"processes": 2}])
def test_a_running_application_answers(surroundings: Surroundings, settings: dict[str, Any]) -> None:
    put(surroundings, 10)
    with application(surroundings, **settings).start() as running:
        store = running.store("counts", at_least=ends(surroundings), wait="60s")
        assert store.get_many([*KEYS, "x"]) == [10] * 7 + [None]
        assert sorted(store.all()) == [(key, 10) for key in KEYS]
        put(surroundings, 5)
        assert running.store("counts", at_least=ends(surroundings), wait="60s").get("k3") == 15
    with pytest.raises(RuntimeUnavailableError, match="does not run any more"):
        running.store("counts")
    with Queries.from_changelog(application(surroundings)) as queries:
        assert queries.store("counts", at_least=ends(surroundings), wait="60s").get("k3") == 15


def patient() -> tuple[World, threading.Event]:
    """Return a world, and the event that something waits in it."""
    waits = threading.Event()

    def sleep(seconds: float) -> None:
        waits.set()
        time.sleep(seconds)

    return World(sleep=sleep), waits


ASKED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "get": (lambda store: store.get("k0"), 1),
    "many": (lambda store: store.get_many(["k3", "x"]), [1, None]),
    "all": (lambda store: sorted(store.all()), [(key, 1) for key in KEYS]),
    "count": (lambda store: store.approximate_count(), 7),
}


@pytest.mark.parametrize("asked", [*ASKED, "task", "changes"])
@pytest.mark.parametrize("source", ["of_this_machine", "from_changelog"])
def test_a_query_waits_for_the_first_start(surroundings: Surroundings, source: str, asked: str) -> None:
    """As right after `start`, which returns before the log has a note of the program."""
    put(surroundings, 1)
    made, threads, (world, waits) = application(surroundings), ThreadPoolExecutor(1), patient()
    with getattr(Queries, source)(made, world=world) as queries, threads:
        task = {"task": "0_0"} if asked == "task" else {}
        store = queries.store("counts", at_least=ends(surroundings), wait="60s", **task)
        waits.clear()
        look, expected = ASKED.get(asked, (lambda store: store.approximate_count() > 0, True))
        answer = threads.submit(store.changes if asked == "changes" else partial(look, store))
        assert waits.wait(60) and not answer.done()
        with made.start():
            if asked != "changes":
                assert answer.result(60) == expected
                return
            with answer.result(60) as changes:
                put(surroundings, 1)
                assert next(changes)[0] in KEYS


def test_a_query_of_an_application_that_never_starts_ends(surroundings: Surroundings) -> None:
    made, (world, waits) = application(surroundings), patient()
    with Queries.of_this_machine(made, world) as queries, ThreadPoolExecutor(1) as threads:
        with pytest.raises(StoreUnavailableError, match="has saved no store 'counts'"):
            queries.store("counts", wait="10ms").get("k0")
        with pytest.raises(StoreUnavailableError, match="has saved no store 'counts'"):
            queries.lags("counts")
        waits.clear()
        answer = threads.submit(queries.store("counts", wait="60s").get, "k0")
        assert waits.wait(60) and not answer.done()
        queries.close()
        with pytest.raises(StoreUnavailableError, match="not read here any more"):
            answer.result(60)


def test_a_partitioner_of_the_program_says_which_task_has_a_key(surroundings: Surroundings) -> None:
    def by_number(topic: str, record: Record, count: int) -> int:
        return int(record.key[1:]) % count

    topology = (
        Topology()
        .add_source("in", "in")
        .add_repartition("by-number", "in", partitions=3, partitioner=by_number)
        .add_processor("count", apps.Count, "by-number", stores=[key_value_store("counts", key_serde="str")])
    )
    put(surroundings, 2)
    made = surroundings.application("app", topology, engine="embedded", commit_interval="10ms")
    run(made, "available_now")
    with Queries.from_changelog(made) as queries:
        store = queries.store("counts", stale_ok=True, wait="60s")
        assert store.get_many(KEYS) == [2] * len(KEYS)
        assert [queries.query_metadata_for_key("counts", key).partition for key in KEYS] == [0, 1, 2, 0, 1, 2, 0]
        with pytest.raises(ConfigError, match="'x': .*name the task, or ask all tasks|needs more than the key"):
            store.get("x")


def test_headers_say_which_task_has_a_key(surroundings: Surroundings) -> None:
    def by_tenant(topic: str, record: Record, count: int) -> int:
        return int(dict(record.headers).get("tenant") or b"0") % count

    topology = (
        Topology()
        .add_source("in", "in")
        .add_repartition("by-tenant", "in", partitions=3, partitioner=by_tenant)
        .add_processor("count", apps.Count, "by-tenant", stores=[key_value_store("counts", key_serde="str")])
    )
    put(surroundings, 1)
    made = surroundings.application("app", topology, engine="embedded", commit_interval="10ms")
    run(made, "available_now")
    with Queries.from_changelog(made) as queries:
        found = [queries.query_metadata_for_key("counts", "k1", (("tenant", b"%d" % each),)) for each in range(5)]
        assert [each.partition for each in found] == [0, 1, 2, 0, 1]
        with pytest.raises(ConfigError, match="needs more than the key"):
            queries.query_metadata_for_key("counts", "k1")


@pytest.mark.parametrize("level", ["read_uncommitted", "none"])
def test_queries_read_what_is_committed_and_nothing_else(surroundings: Surroundings, level: str) -> None:
    topology = Topology().add_source("in", "in")
    topology.add_processor("count", apps.Count, "in", stores=[key_value_store("counts", key_serde="str")])
    made = surroundings.application("app", topology, engine="embedded")
    with Queries.from_changelog(made) as queries:
        assert queries.store("counts", isolation="read_committed") is not None
        with pytest.raises(ConfigError, match="committed versions only.*commit_interval|expected 'read_committed'"):
            queries.store("counts", isolation=level)


@pytest.mark.parametrize("partitions", [(2, 5), (5, 2)])
def test_a_key_is_looked_up_among_the_partitions_of_the_stores_own_topics(
    tmp_path: Path, partitions: tuple[int, int]
) -> None:
    """Another topic of the sub-topology may have more: three keys of five were not found, and none was missed."""
    builder = StreamsBuilder()
    others = builder.stream("others")
    counts = builder.stream("counted").group_by_key().count("counts")
    counts.to_stream().map_values(str).merge(others).to("out")
    keys = [f"k{number}" for number in range(20)]
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(counted=partitions[0], others=partitions[1], out=1)
        for topic in ("counted", "others"):
            surroundings.put(topic, [(key, "v", 1) for key in keys])
        made = surroundings.application("app", builder, engine="embedded", state_serde="str")
        run(made)
        for queries in (Queries.of_this_machine(made), Queries.from_changelog(made)):
            with queries:
                store = queries.store("counts", wait="60s")
                assert store.get_many(keys) == [store.get(key) for key in keys] == [1] * len(keys)
                for key, task in ((key, queries.query_metadata_for_key("counts", key).task) for key in keys):
                    assert queries.store("counts", task=task, wait="60s").get(key) == 1


def test_a_key_is_looked_up_by_the_serde_of_each_source(tmp_path: Path) -> None:
    class Keep(Processor):
        def process(self, record: Record) -> None:
            self.context.get_store("kept").put(record.key, record.value)

    topology = (
        Topology()
        .add_source("texts", "texts", key_serde="str", value_serde="str")
        .add_source("json", "json", key_serde="json", value_serde="str")
        .add_processor("keep", Keep, ["texts", "json"], stores=[key_value_store("kept", key_serde="str")])
    )
    texts, others = [f"t{number}" for number in range(20)], [f"j{number}" for number in range(20)]
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(texts=4, json=4)
        surroundings.put("texts", [(key, "v", 1) for key in texts])
        surroundings.put("json", [(f'"{key}"', "v", 1) for key in others])
        made = surroundings.application("app", topology, engine="embedded", state_serde="str")
        run(made)
        with Queries.of_this_machine(made) as queries:
            assert queries.store("kept").get_many([*texts, *others]) == ["v"] * 40
            assert queries.store("kept").get("missing") is None


def test_no_answer_is_taken_back_when_hosts_are_killed(surroundings: Surroundings) -> None:
    put(surroundings, 10)
    with application(surroundings, processes=2).start() as running, Queries.from_changelog(running.application) as far:
        ended, answers = threading.Event(), [0]
        failures: list[object] = []

        def ask(queries: Queries, stale_ok: bool) -> None:
            last = dict.fromkeys(KEYS, 0)
            store = queries.store("counts", stale_ok=stale_ok, wait="0ms")
            while not ended.wait(0.001):
                for key in KEYS:
                    try:
                        found = store.get(key) or 0
                    except StoreUnavailableError:
                        continue
                    except BaseException as error:
                        failures.append(error)
                        raise
                    if found < last[key]:
                        failures.append(f"{key}: {found} after {last[key]}")
                    answers.append(found)
                    last[key] = found

        asked = [(running.queries, True), (running.queries, False), (far, True)]
        threads = [threading.Thread(target=ask, args=each) for each in asked]
        for each in threads:
            each.start()
        try:
            before = wait_until(lambda: hosts(surroundings))
            put(surroundings, 400)
            os.kill(min(before), signal.SIGKILL)
            store = running.store("counts", at_least=ends(surroundings), wait="60s")
            assert store.get_many(KEYS) == [410] * 7
        finally:
            ended.set()
            for each in threads:
                each.join()
    assert not failures and max(answers) > 10


@pytest.mark.parametrize("settings", [{"processes": 2}, {"store_backend": "memory"}])
def test_a_server_beside_the_run(
    surroundings: Surroundings,
    settings: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And another one when it has ended, although the machine has no room for a process at first."""
    caplog.set_level(logging.INFO, "penstock.queries")
    put(surroundings, 10)
    token = {"queries_token": "a-token-of-the-test"}
    given = application(surroundings, queries="127.0.0.1:0", queries_console=True, **token, **settings)

    def servers() -> list[psutil.Process]:
        children = psutil.Process().children()
        return [each for each in children if "penstock.plugins.state.queries.http" in each.cmdline()]

    with given.start() as running:
        url = next(found[0] for each in caplog.messages if (found := re.search(r"http://\S+", each)))
        with Client(url, token="a-token-of-the-test") as client:

            def count() -> int:
                store = client.store("counts", at_least=ends(surroundings), wait="30s")
                found = store.get("k3")
                return 0 if found is None else found.value

            assert count() == 10
            [server] = servers()
            assert os.getsid(server.pid) == server.pid, "Ctrl-C and the processor time of the run's session are not its"
            if settings.get("processes"):
                assert_tasks_give_way(wait_until(lambda: hosts(surroundings)), server)
            page = Reader(url).get("settings", authorization="Bearer a-token-of-the-test").text
            assert "queries_token ******** code" in page and "commit_interval 10ms code" in page
            (before,) = servers()
            failures, started = [BlockingIOError(11, "no room for a process")], _Server._started

            def start(server: _Server) -> subprocess.Popen[bytes]:
                if failures:
                    raise failures.pop()
                return started(server)

            monkeypatch.setattr(_Server, "_started", start)
            before.kill()
            put(surroundings, 5)
            assert wait_until(lambda: _value(count)) == 15
            assert servers() != [before]
            assert "cannot be started, which is tried again: [Errno 11] no room for a process" in caplog.text
        running.stop()
    assert not servers()


def assert_tasks_give_way(hosts: set[int], server: psutil.Process) -> None:
    for pid in hosts:
        assert psutil.Process(pid).nice() == server.nice() + NICE
    for session in filter(Path.exists, [Path(f"/proc/{pid}/autogroup") for pid in hosts]):
        wait_until(partial(is_nicer, session))


def is_nicer(session: Path) -> bool:
    return session.read_text().endswith(f" nice {NICE}\n")


def _value(count: Any) -> int | None:
    try:
        found: int = count()
        return found
    except (QueryError, StoreUnavailableError):
        return None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queries": "0.0.0.0:0"}, "setting 'queries' 0.0.0.0:0: other machines reach it, and there is no token"),
        ({"queries": "8080"}, "setting 'queries' '8080': expected HOST:PORT"),
        ({"queries": "127.0.0.1:0", "queries_masked": "counts, count"}, "no store 'count'.*did you mean 'counts'"),
        ({"queries": "127.0.0.1:0", "queries_actions": True}, "setting 'queries_actions': .*set queries_actions_token"),
        ({"queries": "127.0.0.1:0", "queries_token": "short"}, "setting 'queries_token': expected a token of 16"),
    ],
)
def test_settings_of_the_server_are_checked_at_the_start(
    surroundings: Surroundings, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(application(surroundings, **settings))
