"""Who follows a store's changes and then reads the store lacks no commit: replicas, and servers that forward."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import Log, ManualClock, StoreUnavailableError, SystemClock, World
from penstock.client import Client, Store
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.state.queries import changes_feed
from penstock.plugins.state.queries.copies import Bounds
from penstock.plugins.state.queries.noted_servers import TaskServer, note_task_servers
from penstock.plugins.state.queries.stores import keys_of, subscribed
from penstock.plugins.state.queries.subscription import Subscription, token_of
from penstock.queries import ChangesEndedError, Queries
from penstock.world import ThreadTicker

from ..replicas.every_kind import Writer, application
from .served import served


class Followed:
    """A writer, and replicas of its stores; the test makes the passes of their threads, by name."""

    def __init__(self, directory: Path, changelog: str, **clocks: Any) -> None:
        self.application = application(directory, changelog, f"local:{directory}/log", store_backend="lmdb")
        self.log: Log = open_log(self.application.settings)
        self.writer = Writer(self.application, self.log)
        self.calls: dict[str, Callable[[], object]] = {}
        self.queries = Queries.from_changelog(self.application, world=World(ticker=self._ticker, **clocks))

    def _ticker(self, name: str, seconds: float, call: Callable[[], object]) -> ThreadTicker:
        self.calls[name] = call
        return ThreadTicker(name, 86_400.0, lambda: None)

    def subscribed(self, after: str | None = None) -> Subscription:
        """Follow the store `plain`."""
        reading = self.queries.reading("plain", Bounds())
        return subscribed(reading, keys_of(reading, None, None, None, None), None, after, lambda: None)

    def value(self, **options: Any) -> Any:
        """Return the value of the key `a`; what cannot be answered at once is an error."""
        return self.queries.store("plain", wait="0ms", **options).get("a")

    def close(self) -> None:
        for each in (self.queries, self.writer.worker, self.log):
            each.close()


@pytest.fixture(params=["directory:changelog", "topic:"])
def followed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Followed]:
    with closing(Followed(tmp_path, request.param)) as made:
        made.writer.commit([("a", "0")])
        made.calls["penstock-replicas"]()
        assert made.value() == "0"
        yield made


def test_a_reader_begins_once_the_replica_has_what_it_begins_behind(followed: Followed) -> None:
    """The replica answered for two seconds as before that commit: to the reader it was lost."""
    followed.writer.commit([("a", "1")])
    reader = followed.subscribed()
    look = followed.calls["penstock-changes"]
    look()
    assert not reader.has_begun
    followed.writer.commit([("a", "2")])
    look()
    assert not reader.has_begun and followed.value() == "0"
    followed.calls["penstock-replicas"]()
    look()
    assert reader.has_begun and followed.value() == "2"
    look()
    found = [(each["key"], each["value"]) for each in reader.take()]
    assert found == [("a", "2")], "it begins where the log was when it came, not where the replica is"


def test_a_reader_that_began_before_the_replica_lets_no_earlier_version_answer(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_feed, "_COPY_SECONDS", 0.0)
    followed.writer.commit([("a", "1")])
    reader = followed.subscribed()
    followed.calls["penstock-changes"]()
    assert reader.has_begun
    with pytest.raises(StoreUnavailableError, match="the log has a later one"):
        followed.value()
    assert followed.value(stale_ok=True) == "0"
    followed.calls["penstock-replicas"]()
    assert followed.value() == "1"


def test_a_server_that_is_asked_instead_has_what_a_reader_begins_behind(followed: Followed, tmp_path: Path) -> None:
    """The server beside Spark's driver has replicas, and is asked for whole stores by those beside the tasks."""
    elsewhere = followed.application.with_settings(state_dir=str(tmp_path / "elsewhere"))
    passes = followed.calls["penstock-replicas"]
    with (
        served(followed.queries) as driver,
        Queries.of_this_machine(elsewhere) as lacks, served(lacks) as url, Client(url) as client,
    ):  # fmt: skip
        note_task_servers("app", followed.log, [TaskServer(driver, socket.gethostname())])
        store = client.store("plain", wait="0ms")
        assert _values(client.store("plain", stale_ok=True)) == ["0"], "of the driver's server"
        passes()
        followed.writer.commit([("a", "1")])
        with client.store("plain").changes():
            for ask in (lambda: _values(store), lambda: store.get("a"), lambda: store.get_many(["a"])):
                with pytest.raises(StoreUnavailableError):
                    ask()
            passes()
            entry = store.get("a")
            assert entry is not None and entry.value == "1" and _values(store) == ["1"]


def _values(store: Store) -> list[Any]:
    return [each.value for each in store.entries()]


@pytest.mark.parametrize("times", ["connected", "connected again", "away"])
def test_a_reader_that_follows_an_idle_task_gets_its_next_change(tmp_path: Path, times: str) -> None:
    """A commit in topics is trusted for twelve hours from when it was seen to be the last one."""
    clock = ManualClock(SystemClock().now_ms())
    seconds = lambda: clock.now_ms() / 1000  # noqa: E731
    with closing(Followed(tmp_path, "topic:", clock=clock, seconds=seconds)) as followed:
        followed.writer.commit([("a", "0"), ("b", "0")])
        followed.calls["penstock-replicas"]()
        reader = followed.subscribed()
        look = followed.calls["penstock-changes"]
        look()
        assert reader.has_begun
        for _ in range(13):
            clock.advance("1h")
            if times != "away":
                look()
        if times == "connected again":
            position, feed = reader.position(), followed.queries.feed
            feed.remove(reader)
            look()
            assert not feed._sources
            reader = followed.subscribed(token_of(position))
        followed.writer.commit([("a", "")])
        look()
        if times == "away":
            with pytest.raises(ChangesEndedError) as raised:
                reader.take()
            assert raised.value.code == "gap"
        else:
            found = [(each["key"], each["value"]) for each in reader.take()]
            # What was committed last before a position may come again.
            assert found == [("a", None), ("b", "0")][: 2 if times == "connected again" else 1]


def test_a_new_reader_of_an_idle_task_gets_its_next_change_once(tmp_path: Path) -> None:
    """Not the one before, which the topic shows again."""
    clock = ManualClock(SystemClock().now_ms())
    with closing(Followed(tmp_path, "topic:", clock=clock)) as followed:
        followed.writer.commit([("a", "0")])
        clock.advance("13h")
        followed.calls["penstock-replicas"]()
        reader = followed.subscribed()
        look = followed.calls["penstock-changes"]
        look()
        assert reader.has_begun
        followed.writer.commit([("b", "1")])
        look()
        assert [(each["key"], each["value"]) for each in reader.take()] == [("b", "1")]
        assert reader.take() == ()
