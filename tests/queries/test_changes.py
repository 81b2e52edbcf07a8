"""Changes of stores as tasks commit: in process, as server-sent events, and by the client."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, aclosing, closing
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import ConfigError, StoreUnavailableError, ValueAndTimestamp, VersionedRecord, Windowed
from penstock.client import AsyncClient, Client, Entry, QueryError
from penstock.plugins.changelogs import topic
from penstock.plugins.state.copies import replica
from penstock.plugins.state.copies.contents import LATEST
from penstock.plugins.state.queries import changes_feed, subscription
from penstock.plugins.state.queries import stores as in_process
from penstock.queries import Changes, ChangesEndedError

from ..replicas.every_kind import INPUT
from ..waiting import wait_until
from .served import ask, served
from .test_kinds import Asked

ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", ""])), min_size=1, max_size=3)
"""So few that nothing expires in four commits."""
FOLLOWED = ["plain", "stamped", "recent", "windows", "sessions", "versions"]


@pytest.fixture
def asked(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Asked]:
    with closing(Asked(tmp_path, changelog=getattr(request, "param", "directory:changelog"))) as made:
        yield made


def content(asked: Asked, name: str) -> dict[Any, Any]:
    """Return the entries of a store; those of a versioned one by key and time."""
    store = asked.store(asked.here, name)
    if name == "versions":
        return {(key, at): each.value for key in "abcd" for at, each in store.get(key, 0, LATEST)}
    return dict(store.find_sessions_range(None, None, 0, LATEST) if name == "sessions" else store.all())


def followed(changes: Changes, content: dict[Any, Any], expected: dict[Any, Any]) -> None:
    """Apply changes until the content is as expected."""
    for key, value in changes:
        if isinstance(value, VersionedRecord):
            key, value = (key, value.timestamp), value.value
        content[key] = value
        if value is None:
            del content[key]
        if content == expected:
            return


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
@settings(deadline=None, max_examples=5)
@given(commits=st.lists(ROWS, min_size=1, max_size=4), store=st.sampled_from(FOLLOWED))
def test_changes_lead_to_the_content(
    changelog: str, commits: list[list[tuple[str, str]]], store: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with closing(Asked(tmp_path_factory.mktemp("app"), changelog=changelog)) as asked:
        asked.writer.commit([("a", "0"), ("b", "0")])
        found = content(asked, store)
        position = None
        for rows in commits:
            # Each reader continues where the one before has ended.
            with asked.here.store(store).changes(after=position) as changes:
                asked.writer.commit([*rows, ("d", rows[0][1] + "x")])
                followed(changes, found, content(asked, store))
                position = changes.position
        assert found == content(asked, store)


@pytest.mark.parametrize("asked", ["directory:changelog", "topic:"], indirect=True)
def test_a_reader_gets_each_change_once_beside_one_that_continues(asked: Asked) -> None:
    """A changelog in topics is read from before the changes of the reader's version on."""
    asked.writer.commit([("a", "0")])
    with asked.here.store("plain").changes() as changes:
        position = changes.position
        for number in range(1, 6):
            asked.writer.commit([("a", str(number)), ("b", str(number))])
            assert next(changes) == ("a", str(number))
            assert next(changes) == ("b", str(number))
            # It is at an earlier version, and read to the same one, before or after the reader.
            with asked.here.store("plain").changes(after=position) as again:
                asked.writer.commit([("c", str(number))])
                assert next(changes) == ("c", str(number))
                assert ("c", str(number)) in again
        asked.writer.commit([("d", "9")])
        assert next(changes) == ("d", "9")


@pytest.mark.parametrize("asked", ["directory:changelog", "topic:"], indirect=True)
def test_a_reader_gets_each_change_once_while_the_task_commits(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.writer.commit([("a", "0")])
    is_last, more = changes_feed.ChangesFeed._is_last, [("b", "1"), ("c", "2")]

    def is_overtaken(*given: Any) -> bool:
        while more:
            asked.writer.commit([more.pop()])  # after the changelog was read
        return is_last(*given)

    with asked.here.store("plain").changes() as changes:
        asked.writer.commit([("a", "1")])
        assert next(changes) == ("a", "1")
        monkeypatch.setattr(changes_feed.ChangesFeed, "_is_last", is_overtaken)
        asked.writer.commit([("d", "3")])
        found = [next(changes)]
        asked.writer.commit([("end", "4")])
        while found[-1] != ("end", "4"):
            found.append(next(changes))
    assert sorted(found) == sorted(set(found)) and ("a", "1") not in found
    assert ("d", "3") in found


@pytest.mark.parametrize("asked", ["directory:changelog", "topic:"], indirect=True)
@pytest.mark.parametrize("between", ["B", ""])
def test_an_entry_that_comes_back_to_its_value_in_a_later_portion_is_told(
    asked: Asked, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that had the value before kept the one between, or none: what it had was compared with each portion."""
    monkeypatch.setattr(topic, "_FETCHED_BYTES", 500)
    monkeypatch.setattr(replica, "_PORTION_BYTES", 1_000)
    asked.writer.commit([("z", "0")])
    with asked.here.store("plain").changes() as changes:
        asked.writer.commit([("k", "A")])
        assert next(changes) == ("k", "A")
        with asked.here.feed._lock:  # the next look comes after all of these
            asked.writer.commit([("k", between)])
            for number in range(40):
                asked.writer.commit([(f"f{number}", "v")])
            asked.writer.commit([("k", "A")])
            for number in range(40):
                asked.writer.commit([(f"g{number}", "v")])
            asked.writer.commit([("~", "1")])
        held: dict[Any, Any] = {"k": "A"}
        for key, value in changes:
            held[key] = value
            if key == "~":
                break
        assert held["k"] == "A"


@pytest.mark.parametrize("asked", ["directory:changelog", "topic:"], indirect=True)
def test_keys_are_chosen(asked: Asked) -> None:
    asked.writer.commit([("a", "0")])
    store = asked.here.store("plain")
    stamped = asked.here.store("stamped", timestamped=True)
    readers = [store.changes("a"), store.changes(prefix="a"), store.changes(start="ab", end="b"), stamped.changes("b")]
    asked.writer.commit([("ab", "2"), ("b", "3"), ("c", "4"), ("a", "1")])
    found = [sorted(islice(each, count), key=str) for each, count in zip(readers, [1, 2, 2, 1], strict=True)]
    stamp = ValueAndTimestamp("3", 15)
    assert found == [[("a", "1")], [("a", "1"), ("ab", "2")], [("ab", "2"), ("b", "3")], [("b", stamp)]]
    asked.writer.commit([("a", ""), ("b", "")])
    assert [next(each) for each in readers] == [("a", None), ("a", None), ("b", None), ("b", None)]
    for each in readers:
        each.close()
        assert list(each) == []


@pytest.mark.parametrize("asked", ["directory:changelog", "topic:"], indirect=True)
def test_windows_sessions_and_versions_of_chosen_keys(asked: Asked) -> None:
    asked.writer.commit([("a", "0")])  # at 5 ms
    names = ["windows", "twice", "sessions", "versions"]
    one = [asked.here.store(name).changes("b") for name in names]
    some = [asked.here.store(name).changes(start="b", end="c") for name in names]
    prefixed = asked.here.store("windows").changes(prefix="a")
    asked.writer.commit([("a", "1"), ("b", "2"), ("ab", "3"), ("c", "4")])
    window, session = Windowed("b", 10, 20), Windowed("b", 0, 15)
    version = VersionedRecord("2", 15)
    assert [next(each) for each in one] == [(window, "2"), (window, "2"), (session, "2"), ("b", version)]
    for each in some:
        assert {getattr(key, "key", key) for key, _ in islice(each, 2)} == {"b", "c"}
    assert sorted(islice(prefixed, 2)) == [(Windowed("a", 10, 20), "1"), (Windowed("ab", 20, 30), "3")]
    asked.writer.commit([("b", "")])
    assert next(one[0]) == (Windowed("b", 30, 40), None)
    assert next(one[3]) == ("b", VersionedRecord(None, 30))
    for changes in (*one, *some, prefixed):
        changes.close()
    with served(asked.here) as url, Client(url) as client:
        readers = [client.store(name).changes("b") for name in names]
        asked.writer.commit([("b", "5")])  # at 35 ms
        found = [next(each) for each in readers]
        for reader in readers:
            reader.close()
    assert found == [
        Entry("b", "5", start=30, end=40), Entry("b", "5", start=30, end=40), Entry("b", "5", start=20, end=35),
        Entry("b", "5", timestamp=35),
    ]  # fmt: skip


def test_a_reader_that_is_closed_ends(asked: Asked) -> None:
    asked.writer.commit([("a", "1")])
    changes = asked.here.store("plain").changes()
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.extend(changes))
    thread.start()
    changes.close()
    thread.join(30)
    assert not thread.is_alive() and not ended
    waiting = asked.here.store("plain").changes()
    asked.here.close()
    with pytest.raises(ChangesEndedError, match="not read any more"):
        next(waiting)


def test_a_reader_that_comes_while_the_stores_are_closed_is_told(asked: Asked) -> None:
    asked.writer.commit([("a", "1")])
    asked.here.feed.close()
    with pytest.raises(ChangesEndedError, match="not read any more"):
        asked.here.store("plain").changes()
    with served(asked.here) as url:
        status, found = ask(url, "/v1/stores/plain/changes")
    assert (status, found["error"]["code"]) == (503, "unavailable")


def test_a_close_just_before_it_waits_ends_it(asked: Asked) -> None:
    changes = asked.here.store("plain").changes()

    class ClosedFirst(threading.Event):
        def clear(self) -> None:
            changes.close()
            super().clear()

    changes._wake = ClosedFirst()
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(list(changes)), daemon=True)
    thread.start()
    thread.join(10)
    assert ended == [[]]


def test_changes_of_one_task_do_not_end_the_wait_for_others(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    class LateInOneTask(subscription.Subscription):
        looks = 0

        @property
        def has_begun(self) -> bool:
            self.looks += 1
            self._notify()  # as for changes of a task that has begun
            return self.looks > 3

    monkeypatch.setattr(in_process, "Subscription", LateInOneTask)
    with asked.here.store("plain").changes() as changes:
        assert changes._subscription.looks > 3
    with served(asked.here) as url:
        begin = _events(urlsplit(url), "/v1/stores/plain/changes", "")
        assert next(begin)[0] == "event: begin"
        begin.close()


def test_what_cannot_be_followed_is_named(asked: Asked) -> None:
    asked.writer.commit([("a", "1")])
    store = asked.here.store("plain")
    with pytest.raises(ConfigError, match="the position of changes: expected the id of the event before"):
        store.changes(after="x")
    with pytest.raises(ConfigError, match="expected one of: key; prefix; start and end"):
        store.changes("a", prefix="a")
    with pytest.raises(ConfigError, match=r"store 'plain': its key serde refuses a key"):
        store.changes(3)
    for position in ({"0_0": "000000000007-00000000_00c0ffee"}, {"0_7": None}, {}):
        after = subscription.token_of(position)
        with store.changes(after=after) as changes, pytest.raises(ChangesEndedError, match="store again") as gap:
            next(changes)
        assert gap.value.code == "gap"


def test_a_slow_reader_is_cut_and_continues(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "MOST_WAITING_BYTES", 1_000)
    asked.writer.commit([("a", "0")])
    with asked.here.store("plain").changes("a") as changes:
        reader: subscription.Subscription = changes._subscription
        number = 0

        def is_cut() -> bool:
            nonlocal number
            number += 1
            asked.writer.commit([("a", str(number))])
            return reader.has_ended

        wait_until(is_cut, "too much waits")
        begun, waits = changes.position, reader._size
        with pytest.raises(ChangesEndedError, match="take them faster") as slow:
            list(changes)
        assert slow.value.code == "slow" and waits <= 1_000 + 300, "a portion more than may wait"
        assert changes.position != begun, "it got what waited: a reader that takes nothing would never get on"
    monkeypatch.setattr(subscription, "MOST_WAITING_BYTES", 1_000_000)
    with asked.here.store("plain").changes("a", after=changes.position) as again:
        assert next(value for _, value in again if value == str(number)) == str(number)


@pytest.mark.parametrize("asked", ["topic:"], indirect=True)
@pytest.mark.parametrize("readers", [1, 2])
def test_a_reader_gets_beyond_a_version_of_many_parts(
    asked: Asked, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut within the version, each time, and began with it again without end."""
    monkeypatch.setattr(subscription, "MOST_WAITING_BYTES", 1_000)
    monkeypatch.setattr(topic, "_FETCHED_BYTES", 500)
    monkeypatch.setattr(replica, "_PORTION_BYTES", 3_000)
    asked.writer.commit([("a", "0")])
    store = asked.here.store("plain")
    with store.changes() as changes:
        position = changes.position
    rows = [(f"k{number}", "v") for number in range(60)]
    for number in range(0, 60, 6):
        asked.writer.commit(rows[number : number + 6])
    with ExitStack() as stack:
        opened = [stack.enter_context(store.changes(after=position)) for _ in range(readers)]
        wait_until(lambda: all(each._subscription._size > 1_000 for each in opened), "more waits than may")
        missing = [{*rows} for _ in opened]
        while any(missing):  # by turns; only what was before the position may come again
            for each, own in zip(opened, missing, strict=True):
                if own and (change := next(each)) != ("a", "0"):
                    own.remove(change)
        asked.writer.commit([("end", "1")])
        for each in opened:
            assert next(found for found in each if found != ("a", "0")) == ("end", "1")


@pytest.mark.parametrize("asked", ["topic:"], indirect=True)
def test_readers_that_have_read_different_parts_of_a_version_lose_nothing(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place of both has the same name; what the other one has read there is new to the first one."""
    monkeypatch.setattr(topic, "_FETCHED_BYTES", 500)
    monkeypatch.setattr(replica, "_PORTION_BYTES", 1_000)
    base = asked.writer.commit([("a", "0")])
    rows = [(f"k{number}", "v") for number in range(60)]
    for number in range(0, 60, 6):
        asked.writer.commit(rows[number : number + 6])
    last, feed = asked.log.last_commit("app", "0_0", [INPUT]), asked.here.feed
    source = feed._source("0_0", [])
    assert source is not None and last is not None

    def reading(have: str) -> Iterator[tuple[set[tuple[str, bytes]], str]]:
        for changes, version in source.steps(source.history.restore(last.version, have)):
            yield {(store, key) for store, rows in changes.items() for key, _ in rows}, version

    first, other = reading(base), reading(base)
    found, place = next(first)
    more = next(other)[0]
    while not more - found:
        rows_of_part, at = next(other)
        more |= rows_of_part
        assert at == place, "both are within the version"
    parts = list(reading(place))  # as after a failure
    assert found.union(*(each for each, _ in parts)) >= more
    assert parts[-1][1] == last.version


def test_the_client_follows_over_restarts_of_the_server(asked: Asked) -> None:
    asked.writer.commit([("a", "0")])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    from penstock.plugins.state.queries.http.guard import Address

    address = Address("127.0.0.1", port)
    with served(asked.here, address=address) as url, Client(url) as client:
        changes = client.store("plain").changes(prefix="a")
        asked.writer.commit([("a", "1"), ("b", "1")])
        assert next(changes) == Entry("a", "1")
    asked.writer.commit([("ab", "2")])
    with changes, served(asked.here, address=address):
        assert next(entry for entry in changes if entry.key == "ab") == Entry("ab", "2")
        asked.writer.commit([("ab", "")])
        assert next(changes) == Entry("ab", None)


def test_events(asked: Asked) -> None:
    asked.writer.commit([("a", "0")])
    with served(asked.here, masked=["stamped"]) as url:
        place = urlsplit(url)
        lines = _events(place, "/v1/stores/stamped/changes?key=a&timestamps=true", "")
        assert next(lines)[0] == "event: begin"
        asked.writer.commit([("a", "1")])
        event = next(lines)
        assert event[:2] == ["event: change", 'data: {"key":"a","value":"***","timestamp":10}']
        asked.writer.commit([("a", "2")])
        lines.close()
        again = _events(place, "/v1/stores/stamped/changes?key=a&timestamps=true", event[2].removeprefix("id: "))
        next(again)
        assert next(again)[1] == 'data: {"key":"a","value":"***","timestamp":15}'
        again.close()
        gone = _events(place, "/v1/stores/plain/changes", subscription.token_of({"0_0": "000000000007-0_00c0ffee"}))
        assert next(gone)[0] == "event: begin"
        assert '"code":"gap"' in next(gone)[1]
        assert list(gone) == []
        for path, status in (("lists/changes", 400), ("none/changes", 404), ("plain/changes?prefix=a&key=b", 400)):
            assert ask(url, f"/v1/stores/{path}")[0] == status
        wrong: Any = {"last-event-id": "x"}
        assert ask(url, "/v1/stores/plain/changes", **wrong)[0] == 400


def _events(place: Any, path: str, last: str) -> Generator[list[str], None, None]:
    """Ask for events; yield the lines of each."""
    connection = socket.create_connection((place.hostname, place.port), timeout=60)
    header = f"Last-Event-ID: {last}\r\n" if last else ""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n{header}\r\n".encode())

    def events() -> Generator[list[str], None, None]:
        with connection, connection.makefile("r", newline="\n") as lines:
            while next(lines) != "\r\n":
                pass
            event: list[str] = []
            for line in lines:
                text = line.strip()
                if not text and event:
                    yield event
                    event = []
                elif ":" in text:
                    event.append(text)

    return events()


def test_streams_of_the_asynchronous_client_leave_the_threads_of_asyncio_to_others(asked: Asked) -> None:
    asked.writer.commit([("a", "0")])
    count = 40  # asyncio has 32 threads at most

    async def ask_beside(url: str) -> int:
        async with AsyncClient(url) as client:
            streams = [client.store("plain").changes() for _ in range(count)]
            taken = [asyncio.ensure_future(anext(each)) for each in streams]
            while len(asked.here.feed._subscriptions) < count:
                await asyncio.sleep(0.01)
            entry = await client.store("plain").get("a")
            assert entry is not None and entry.value == "0"
            while not all(each.done() for each in taken):
                await asyncio.to_thread(asked.writer.commit, [("a", "1")])
                await asyncio.wait(taken, timeout=0.1)
            for each in streams:
                await each.aclose()
            return len(await asyncio.gather(*taken))

    with served(asked.here) as url:
        assert asyncio.run(asyncio.wait_for(ask_beside(url), 120)) == count
    wait_until(lambda: not asked.here.feed._subscriptions, "their subscriptions end")


WRONG = [
    "",
    "x",
    "7",
    "-1",
    "../0",
    "\x00",
    "restoring:000000000001-1a2b3c4d_00c0ffee:3",
    "9" * 400,
    "é-_",
    "\ud800",
    "999999999999-1a2b3c4d_00c0ffee",
    "000000000001-1a2b3c4d_00c0ffee",
    "000000000001-",
    "999999999999",
    "9" * 5_000 + "-a",
]
"""Versions that nobody has given out."""


@pytest.mark.parametrize("asked", ["directory:changelog", "topic:"], indirect=True)
def test_a_reader_with_a_position_that_nobody_gave_out_stops_no_other(asked: Asked) -> None:
    asked.writer.commit([("a", "0")])
    with asked.here.store("plain").changes() as changes:
        for number, version in enumerate(WRONG, 1):
            with pytest.raises((ConfigError, ChangesEndedError)):
                next(asked.here.store("plain").changes(after=subscription.token_of({"0_0": version})))
            asked.writer.commit([("a", str(number))])
            assert next(changes) == ("a", str(number)), version


def test_a_reader_whose_history_cannot_be_read_stops_no_other(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.writer.commit([("a", "0")])
    unreadable = "000000000000-1a2b3c4d_00c0ffee"
    read = changes_feed.ChangesFeed._read

    def reads(feed: Any, source: Any, have: str | None, *given: Any) -> None:
        if have == unreadable:
            raise _no_log()
        read(feed, source, have, *given)

    monkeypatch.setattr(changes_feed.ChangesFeed, "_read", reads)
    after = subscription.token_of({"0_0": unreadable})
    with asked.here.store("plain").changes(after=after), asked.here.store("plain").changes() as changes:
        asked.writer.commit([("a", "1")])
        assert next(changes) == ("a", "1")


def test_the_asynchronous_client_follows(asked: Asked) -> None:
    asked.writer.commit([("a", "0")])

    async def follow(url: str) -> list[Entry]:
        async with AsyncClient(url) as client, aclosing(client.store("plain").changes("a")) as changes:
            first = asyncio.ensure_future(anext(changes))
            found: list[Entry] = []
            number = 0
            while not first.done():  # until the stream has begun
                number += 1
                await asyncio.to_thread(asked.writer.commit, [("a", str(number))])
                await asyncio.sleep(0.02)
            found.append(await first)
            return found

    with served(asked.here) as url:
        (entry,) = asyncio.run(follow(url))
    assert entry.key == "a"


def test_many_readers_leave_nothing_behind(asked: Asked) -> None:
    asked.writer.commit([("a", "0")])
    with served(asked.here) as url:
        place = urlsplit(url)
        streams = [_events(place, "/v1/stores/plain/changes", "") for _ in range(100)]
        for each in streams:
            next(each)
        feed = asked.here.feed
        assert len(feed._subscriptions) == 100
        asked.writer.commit([("a", "1")])
        assert {next(each)[1] for each in streams} == {'data: {"key":"a","value":"1"}'}
        for each in streams:
            each.close()
        wait_until(lambda: not feed._subscriptions, "their subscriptions end")
        wait_until(lambda: not feed._sources, "the changelogs are closed")


def test_the_server_of_a_log_that_does_not_answer(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.writer.commit([("a", "0")])
    monkeypatch.setattr(type(asked.here._copies), "last_commit", lambda *given: (_ for _ in ()).throw(_no_log()))
    with pytest.raises(StoreUnavailableError, match="has not said in time where its changes begin"):
        asked.here.store("plain", wait="100ms").changes()
    with served(asked.here) as url, Client(url, timeout="100ms") as client, pytest.raises(QueryError):
        client.store("none", wait="0ms").changes()
    assert not asked.here.feed._subscriptions


def _no_log() -> Exception:
    from penstock import LogError

    return LogError("it does not answer")
