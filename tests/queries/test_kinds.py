"""Queries of every kind of store: they find what the task committed, of its local state and of replicas alike."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    Application,
    ConfigError,
    Log,
    LogError,
    ReadOnlyKeyValueStore,
    ReadOnlyListStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedKeyValueStore,
    ReadOnlyWindowStore,
    SerdeError,
    StaleStoreError,
    StoreError,
    StoreUnavailableError,
    TopicPartition,
    ValueAndTimestamp,
    VersionedRecord,
    Windowed,
)
from penstock.changelog import version_counter
from penstock.client import Client
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.state.copies import Replica
from penstock.plugins.state.copies.contents import declared_store, entries, entries_of, open_store
from penstock.plugins.state.queries import copies
from penstock.queries import Queries, TaskLag
from penstock.stores.lmdb import registry as lmdb_registry
from penstock.stores.lmdb.backend import LmdbView

from ..replicas.every_kind import INPUT, STORES, Writer, application
from ..waiting import wait_until
from .served import served

CASES = [("lmdb", "directory:changelog"), ("contrib.sqlite", "directory:changelog"),
         ("memory", "directory:changelog"), ("lmdb", "topic:")]  # fmt: skip
ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", ""])), min_size=1, max_size=12)


class Asked:
    """A writer, and queries of its local state and of replicas."""

    def __init__(self, directory: Path, backend: str = "lmdb", changelog: str = "directory:changelog") -> None:
        self.application = application(directory, changelog, f"local:{directory}/log", store_backend=backend)
        self.log: Log = open_log(self.application.settings)
        self.writer = Writer(self.application, self.log)
        self.here = Queries.of_this_machine(self.application)
        self.replicas = Queries.from_changelog(self.application)

    def close(self) -> None:
        for each in (self.replicas, self.here, self.writer.worker, self.log):
            each.close()

    def store(self, queries: Queries, name: str, **options: Any) -> Any:
        """Return a store that answers with the task's last commit or a later version."""
        commit = self.log.last_commit("app", "0_0", [INPUT])
        at_least = {} if commit is None else dict(commit.positions)
        return queries.store(name, at_least=at_least, wait="60s", **options)


@pytest.fixture
def asked(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Asked]:
    with closing(Asked(tmp_path, getattr(request, "param", "lmdb"))) as made:
        yield made
    assert not [each for each in lmdb_registry._environments if each.startswith(str(tmp_path))], "a view is left open"


@pytest.mark.parametrize(("backend", "changelog"), CASES)
@settings(deadline=None, max_examples=5)
@given(commits=st.lists(ROWS, min_size=1, max_size=4))
def test_a_query_finds_what_the_task_committed(
    backend: str, changelog: str, commits: list[list[tuple[str, str]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("app")
    with closing(Asked(directory, backend, changelog)) as asked:
        for number, rows in enumerate(commits):
            asked.writer.commit(rows)
            given = asked.application
            with Replica(given, "0_0", asked.log, directory / f"own{number}") as replica:
                assert replica.catch_up()
                for builder in STORES:
                    with closing(open_store(given, replica, declared_store(given, builder.name)[1])) as store:
                        check_alike(asked, builder.name, store)


def check_alike(asked: Asked, name: str, store: Any) -> None:
    for queries in (asked.here, asked.replicas):
        found = asked.store(queries, name, timestamped=True)
        for key in "abcd":
            assert list(entries_of(found, key)) == list(entries_of(store, key)), (name, key)
        if not isinstance(store, ReadOnlyVersionedKeyValueStore):
            assert list(entries(found)) == list(entries(store)), name
            assert list(entries(found, "b", "b")) == list(entries(store, "b", "b")), name


def test_each_kind_has_its_reading_half(asked: Asked) -> None:
    asked.writer.commit([("a", "1"), ("ab", "2"), ("b", "3"), ("a", "4")])
    for queries in (asked.here, asked.replicas):
        plain, stamped = asked.store(queries, "plain"), asked.store(queries, "stamped")
        windows, sessions = asked.store(queries, "windows"), asked.store(queries, "sessions")
        versions, lists = asked.store(queries, "versions"), asked.store(queries, "lists")
        halves = [plain, stamped, asked.store(queries, "recent"), windows, sessions, versions, lists]
        types = [ReadOnlyKeyValueStore] * 3 + [
            ReadOnlyWindowStore, ReadOnlySessionStore, ReadOnlyVersionedKeyValueStore, ReadOnlyListStore
        ]  # fmt: skip
        assert all(map(isinstance, halves, types))

        assert plain.get("a") == stamped.get("a") == "4" and plain.get("x") is None
        assert asked.store(queries, "stamped", timestamped=True).get("a") == ValueAndTimestamp("4", 20)
        assert plain.get_many(["b", "x", "a", "a"]) == ["3", None, "4", "4"]
        assert list(plain.range("ab", "b")) == [("ab", "2"), ("b", "3")]
        assert list(plain.reverse_all()) == [("b", "3"), ("ab", "2"), ("a", "4")]
        assert list(plain.prefix_scan("a")) == [("a", "4"), ("ab", "2")]
        assert plain.approximate_count() == lists.approximate_count() - 1 == 3

        assert windows.fetch("a", 0) == "1" and windows.fetch("a", 30) is None
        assert list(windows.fetch("a", 0, 99)) == [(0, "1"), (20, "4")]
        assert list(windows.backward_fetch("a", 0, 99)) == [(20, "4"), (0, "1")]
        assert list(windows.fetch_all(10, 10)) == [(Windowed("ab", 10, 20), "2"), (Windowed("b", 10, 20), "3")]
        assert [key.key for key, _ in windows.backward_all()] == ["b", "ab", "a", "a"]
        assert list(sessions.fetch("a")) == [(Windowed("a", 0, 5), "1"), (Windowed("a", 20, 20), "4")]
        assert sessions.fetch_session("a", 0, 5) == "1"
        assert list(sessions.find_sessions_range("a", "b", 15, 15)) == [(Windowed("b", 0, 15), "3")]
        assert versions.get("a", 7) == VersionedRecord("1", 5, 20) and versions.get("a").value == "4"
        assert [each.value for _, each in versions.get("a", 0, 99)] == ["4", "1"]
        assert lists.get("a") == ["1", "4"] and lists.get("x") == []
        assert windows.approximate_count() == 4 and sessions.approximate_count() == 4
        assert queries.query_metadata_for_key("plain", "a").partition == 0
        version = version_counter(list(asked.writer.contents)[-1])
        wait_until(lambda: queries.lags("plain") == [TaskLag("0_0", version, 0)], seconds=5)  # noqa: B023


def test_what_a_task_has_not_committed_is_not_seen(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors ask while they process: each finds what the commit before has."""
    asked.writer.commit([("a", "1")])
    seen: list[Any] = []
    writer = asked.writer.worker
    prepare = writer._state.apply  # type: ignore[union-attr]

    def ask_and_write(*given: Any) -> None:
        seen.append([asked.here.store(name, stale_ok=True).get("a") for name in ("plain", "recent", "stamped")])
        prepare(*given)

    monkeypatch.setattr(writer._state, "apply", ask_and_write)
    asked.writer.commit([("a", "2"), ("a", "3")])
    asked.writer.commit([("a", "")])
    assert seen == [["1"] * 3, ["3"] * 3]
    assert asked.store(asked.here, "plain").get("a") is None


@pytest.mark.parametrize("asked", ["memory", "lmdb"], indirect=True)
def test_a_range_is_of_one_version(asked: Asked) -> None:
    asked.writer.commit([(key, "1") for key in "abcdefgh"])
    for queries in (asked.here, asked.replicas):
        with asked.store(queries, "plain").all() as before:
            found = [next(before)]
            value = {"1": "2", "2": "3"}[found[0][1]]
            asked.writer.commit([(key, value) for key in "abcdefgh"])
            assert len({value for _, value in [*found, *before]}) == 1


def test_a_view_that_ends_is_made_again(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the files are mapped larger, or a task that is opened closes what readers have."""
    asked.writer.commit([(key, "1") for key in "ab"])
    range_of, get_of = LmdbView.range, LmdbView.get
    ended: list[bool] = []

    def ends_once(read: Any) -> Any:
        def reading(*given: Any, **options: Any) -> Any:
            if not ended:
                ended.append(True)
                raise StaleStoreError("the view has ended")
            return read(*given, **options)

        return reading

    monkeypatch.setattr(LmdbView, "get", ends_once(get_of))
    monkeypatch.setattr(LmdbView, "range", ends_once(range_of))
    for queries in (asked.here, asked.replicas):
        store = asked.store(queries, "plain")
        ended.clear()
        assert store.get("a") == "1" and ended
        ended.clear()
        assert store.get_many("ab") == ["1", "1"] and ended
        ended.clear()
        assert list(store.all()) == [("a", "1"), ("b", "1")] and ended


def test_what_has_gone_for_good_is_unavailable(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the tasks are others after a resharding."""
    asked.writer.commit([(key, "1") for key in "ab"])
    stores = [asked.store(queries, "plain") for queries in (asked.here, asked.replicas)]
    assert [each.get("a") for each in stores] == ["1", "1"]
    range_of = LmdbView.range

    def first_row(*given: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        yield next(range_of(*given, **options))
        raise StaleStoreError("the view has ended")

    def ends(*given: Any) -> bytes:
        raise StaleStoreError("the view has ended")

    monkeypatch.setattr(LmdbView, "range", first_row)
    monkeypatch.setattr(LmdbView, "get", ends)
    for store in stores:
        for read in (lambda store: list(store.all()), lambda store: store.get("b")):
            with pytest.raises(StoreUnavailableError, match="store 'plain' in task 0_0 .* ask again"):
                read(store)


def test_bounds(asked: Asked) -> None:
    asked.writer.commit([("a", "1")])
    for queries in (asked.here, asked.replicas):
        assert asked.store(queries, "plain").get("a") == "1"
        ahead = queries.store("plain", at_least={INPUT: 2}, wait="0ms")
        with pytest.raises(StoreUnavailableError, match=r"task 0_0.*records before in-0:2"):
            ahead.get("a")
        with pytest.raises(ConfigError, match=r"do not read out; they read in$"):
            queries.store("plain", at_least={TopicPartition("out", 0): 2})
        assert queries.store("plain", at_least={TopicPartition("in", 7): 2}, stale_ok=True).get("a") == "1"
    asked.writer.commit([("a", "2")])
    assert asked.here.store("plain", at_least={INPUT: 2}).get("a") == "2"


def test_a_copy_that_is_behind_says_so(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    version = version_counter(asked.writer.commit([("a", "1")]))
    monkeypatch.setattr(asked.writer.worker._state, "apply", lambda *given: None)
    asked.writer.commit([("a", "2")])
    with pytest.raises(StoreUnavailableError, match=rf"version {version}, and the log has a later one.*stale_ok"):
        asked.here.store("plain", wait="0ms").get("a")
    assert asked.here.store("plain", stale_ok=True).get("a") == "1"
    assert asked.here.lags("plain") == [TaskLag("0_0", version, 1)]


def test_stale_versions_answer_while_the_log_is_away(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.writer.commit([("a", "1")])
    for queries in (asked.here, asked.replicas):
        assert asked.store(queries, "plain").get("a") == "1"

    def is_away(*given: Any) -> Any:
        raise LogError("the broker is away")

    for name in ("get_meta", "last_commit"):
        monkeypatch.setattr(type(asked.log), name, is_away)
    monkeypatch.setattr(copies, "MOST_AGE_SECONDS", -1.0)
    for queries in (asked.here, asked.replicas):
        queries._note_reader.at = queries._copies._note_reader.at = float("-inf")  # as after a while
        assert queries.store("plain", stale_ok=True).get("a") == "1"
        with pytest.raises((LogError, StoreUnavailableError)):
            queries.store("plain", wait="0ms").get("a")


def test_what_cannot_be_asked_is_named(asked: Asked, tmp_path: Path) -> None:
    for queries in (asked.here, asked.replicas):
        with pytest.raises(ConfigError, match=r"no store 'plane' that queries can read; did you mean 'plain'"):
            queries.store("plane")
        with pytest.raises(ConfigError, match=r"task '0_1'.*'0_0'"):
            queries.store("plain", task="0_1").get("a")
        with pytest.raises(SerdeError, match="store 'plain': cannot write the key '3'"):
            asked.store(queries, "plain").get(3)
    with pytest.raises(ConfigError, match="no store 'x'"):
        Queries.from_changelog(asked.application, stores=["x"])
    elsewhere = application(
        tmp_path / "elsewhere", f"directory:{tmp_path}/changelog", f"local:{tmp_path}/log", store_backend="lmdb"
    )
    asked.writer.commit([("a", "1")])
    with Queries.of_this_machine(elsewhere) as other:
        assert asked.here.can_answer("plain") and not other.can_answer("plain")
    no_state = pytest.raises(StoreUnavailableError, match="this machine has no local state of the task")
    with Queries.of_this_machine(elsewhere) as other, no_state:
        other.store("plain", wait="0ms").get("a")


def test_a_backend_of_one_process_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    with closing(Asked(tmp_path, "contrib.rocksdb")) as asked:
        asked.writer.commit([("a", "1")])
        with pytest.raises(StoreError, match=r"rocksdb.*cannot be read beside its task.*from_changelog"):
            asked.here.store("plain").get("a")
        assert asked.store(asked.replicas, "plain").get("a") == "1"


def test_an_application_that_has_not_run(tmp_path: Path) -> None:
    made: Application = application(tmp_path, "directory:changelog", f"local:{tmp_path}/log")
    for open_queries in (Queries.of_this_machine, Queries.from_changelog):
        with open_queries(made) as queries, pytest.raises(StoreUnavailableError, match="has saved no store 'plain'"):
            queries.store("plain", wait="0s").get("a")


def test_a_version_as_of_a_time_is_the_same_in_process_and_over_http(asked: Asked) -> None:
    """A version that is valid in the history and before it answers for the history alone, as in Kafka Streams."""
    asked.writer.commit([("a", "1"), *[("b", "2")] * 20, ("a", "3")])
    store = asked.store(asked.here, "versions")
    with served(asked.here) as url, Client(url) as client:
        far = client.store("versions")
        for time in range(0, 120, 2):
            near, found = store.get("a", time), far.get("a", as_of=time)
            assert (near is None) == (found is None), time
            if near is not None and found is not None:
                assert (near.value, near.timestamp, near.valid_to) == (found.value, found.timestamp, found.valid_to)
        assert store.get("a", 6) is None and store.get("a", 12).value == "1"
        latest = far.get("a")
        assert latest is not None and (latest.value, latest.timestamp, latest.valid_to) == ("3", 110, -1)


def test_a_call_ends_when_the_queries_are_closed(asked: Asked) -> None:
    """It waited for a replica that nothing brought up any more, and said that it was being restored."""
    asked.writer.commit([("a", "1")])
    for queries in (asked.here, asked.replicas):
        store = asked.store(queries, "plain")
        assert store.get("a") == "1"
        queries.close()
        with pytest.raises(StoreUnavailableError, match="is not read here any more: the queries were closed"):
            store.get("a")


def test_a_replica_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [RuntimeError("of a plugin"), StoreError("the disk is full")]
    catch_up = Replica.catch_up

    def fail_first(self: Replica, *given: Any) -> bool:
        if failures:
            raise failures.pop()
        return catch_up(self, *given)

    monkeypatch.setattr(Replica, "catch_up", fail_first)
    with closing(Asked(tmp_path)) as asked:
        asked.writer.commit([("a", "1")])
        assert asked.store(asked.replicas, "plain").get("a") == "1" and not failures


def test_queries_of_many_versions_leave_nothing_to_the_garbage_collector(asked: Asked) -> None:
    """While it collects what the stores of many commits have left, a server answers nothing."""
    asked.writer.commit([("a", "1")])
    stores = [asked.store(asked.here, each.name) for each in STORES]

    def ask(value: str) -> None:
        asked.writer.commit([("a", value)])
        asked.store(asked.here, "plain")  # waits for the commit
        for each in stores:
            assert list(entries_of(each, "a"))

    def left() -> Counter[str]:
        gc.collect()
        gc.disable()
        try:
            for value in "345":
                ask(value)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            return Counter(type(each).__name__ for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    ask("2")
    # What another test had open may end in a thread meanwhile, once; what queries leave is there each time.
    found = [left() for _ in range(3)]
    assert not all(found), found
