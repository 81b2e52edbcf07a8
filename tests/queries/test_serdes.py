"""Serdes of queries: one thread at a time uses one, a slow one stops nobody else, and another program's are refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

import pytest

from penstock import (
    Application,
    ConfigError,
    FloatSerde,
    IncompatibleStateError,
    IntSerde,
    OutputBatch,
    PenstockError,
    Processor,
    Record,
    Serde,
    SerdeError,
    StoreUnavailableError,
    Topology,
    Windowed,
    default_partitioner,
    key_value_store,
    lru_map,
    session_store,
    versioned_store,
    window_store,
)
from penstock.client import Client, QueryError
from penstock.plugins.dsl import TimeWindowedSerde
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.serdes.registry.avro import AvroSerde
from penstock.plugins.state.copies.contents import StoreText, tasks_with
from penstock.plugins.state.queries.noted_servers import TaskServer, note_task_servers
from penstock.program.serdes import make_serde
from penstock.queries import Queries
from penstock.serdes import of

from .served import ask, served


class Keep(Processor):
    def process(self, record: Record) -> None:
        self.context.get_store("kept").put(record.key, 1000)


class InTwoSteps(Serde[str]):
    """Keeps the value between two steps, as an encoder with a buffer does; two threads are between them at a time."""

    both: threading.Barrier | None = None

    def serialize(self, value: str) -> bytes:
        self._value = value
        if InTwoSteps.both is not None:
            with suppress(threading.BrokenBarrierError):  # the other one is elsewhere
                InTwoSteps.both.wait(10)
        return self._value.encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()

    def written_form(self) -> str:
        return "two steps"


class Slow(Serde[str]):
    """Waits while it writes, until the test lets it."""

    begun, go = threading.Event(), threading.Event()

    def serialize(self, value: str) -> bytes:
        Slow.begun.set()
        assert Slow.go.wait(60)
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()


class Unreadable(Serde[int]):
    """Reads nothing of what it writes, and says what that is."""

    def serialize(self, value: int) -> bytes:
        return b"secret"

    def deserialize(self, data: bytes) -> int:
        raise SerdeError(f"expected a number, found {data!r}")


class Raising(Serde[str]):
    """Raises what no serde of penstock does."""

    def serialize(self, value: str) -> bytes:
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        return {"known": "known"}[data.decode()]

    def written_form(self) -> str:
        return "raising"


class Status(Enum):
    OPEN = "open"


class Place(NamedTuple):
    row: int
    status: Status


@dataclass(frozen=True)
class Seat:
    place: Place
    others: tuple[Status, ...]
    since: timedelta


def application(
    directory: Path, topic_key: str | Serde[Any], key: str | Serde[Any], value: str | Serde[Any], **settings: Any
) -> Application:
    store = key_value_store("kept", key_serde=key, value_serde=value)
    topology = Topology().add_source("in", "in", key_serde=topic_key).add_processor("keep", Keep, "in", stores=[store])
    return Application("app", topology, log=f"local:{directory}/log", data_dir=str(directory), **settings)


def keep(made: Application, *keys: Any, serialize: Callable[[Any], bytes] = str.encode) -> None:
    """Put keys into the store, in two tasks."""
    with closing(open_log(made.settings)) as log:
        if "in" not in log.topics():
            log.create_topic("in", 2)
        raw = [serialize(each) for each in keys]
        log.append(OutputBatch("in", list(raw), list(raw), [1] * len(raw)))
        prepared, resources = prepare(made, log), ProcessResources()
        with closing(resources):
            for task, inputs in prepared.assignment.tasks.items():
                worker = TaskWorker(prepared.application, task, inputs, log, resources=resources)
                worker.run_batch(log.end_offsets(inputs), 0)
                worker.close()


@pytest.fixture(autouse=True)
def free() -> Iterator[None]:
    yield
    InTwoSteps.both = None
    Slow.go.set()


def test_threads_do_not_share_a_serde(tmp_path: Path) -> None:
    made = application(tmp_path, InTwoSteps(), InTwoSteps(), "int")
    of_task = {default_partitioner(key.encode(), 2): key for key in "abcdef"}
    keys = list(of_task.values())
    keep(made, *keys)
    with Queries.of_this_machine(made) as queries, ThreadPoolExecutor(2) as threads:
        store = queries.store("kept")
        assert [store.get(key) for key in keys] == [1000, 1000]
        InTwoSteps.both = threading.Barrier(2)
        assert list(threads.map(store.get, keys)) == [1000, 1000]


def test_a_slow_serde_of_a_topic_does_not_stop_the_server(tmp_path: Path) -> None:
    made = application(tmp_path, Slow(), "str", "int")
    Slow.go.set()
    keep(made, "a", "b")
    with Queries.of_this_machine(made) as queries, served(queries) as url, ThreadPoolExecutor(1) as threads:
        path, given = "/v1/stores/kept/get", {"key": "a"}
        assert ask(url, path, given=given) == (200, {"key": "a", "value": 1000})
        Slow.begun.clear()
        Slow.go.clear()
        found = threads.submit(ask, url, path, given=given)
        assert Slow.begun.wait(60)
        assert ask(url, "/health/live")[0] == 200
        assert not found.done()
        Slow.go.set()
        assert found.result()[0] == 200


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_a_program_with_another_serde_than_the_last_one_is_refused(tmp_path: Path, changelog: str) -> None:
    keep(application(tmp_path, "str", "str", IntSerde(), changelog=changelog), "a")
    other = application(tmp_path, "str", "str", FloatSerde(), changelog=changelog)
    said = r"store 'kept' was written with value_serde penstock.serde.IntSerde and now has .*FloatSerde: give the prog"
    for open_queries in (Queries.of_this_machine, Queries.from_changelog):
        with open_queries(other) as queries:
            with pytest.raises(IncompatibleStateError, match=said):
                queries.store("kept", wait="1m").get("a")
            with served(queries) as url:
                status, answer = ask(url, "/v1/stores/kept/get", given={"key": "a"})
                assert (status, answer["error"]["code"]) == (409, "not_readable")
                status, answer = ask(url, "/v1/stores/kept/changes", given={"wait": "20000"})
                assert (status, answer["error"]["code"]) == (409, "not_readable")


@dataclass(frozen=True)
class Seat1:
    row: str


@dataclass(frozen=True)
class Seat2:
    row: str
    number: int = 0


@dataclass(frozen=True)
class Seat3:
    row: str | None


SEAT = '{"type": "record", "name": "Seat", "fields": [{"name": "row", "type": "string"}]}'
NUMBERED = SEAT.replace("}]}", '}, {"name": "number", "type": "int", "default": 0}]}')


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [
        (of(Seat1), of(Seat2), Seat1("a"), Seat2("a")),
        (AvroSerde(SEAT, registry="mock://q"), AvroSerde(NUMBERED, registry="mock://q"), {"row": "a"}, {"row": "a"}),
    ],
)
def test_a_program_whose_keys_have_other_bytes_is_refused(
    tmp_path: Path, changelog: str, before: Serde[Any], after: Serde[Any], old: Any, new: Any
) -> None:
    """It read the rows, so it answered that no key was there, and followed none of their changes."""
    keep(application(tmp_path, before, before, "int", changelog=changelog), old, serialize=before.serialize)
    other = application(tmp_path, after, after, "int", changelog=changelog)
    said = "written with key_serde .*: its rows would not be found by their keys; give the program that ran last"
    for open_queries in (Queries.of_this_machine, Queries.from_changelog):
        with open_queries(other) as queries:
            with pytest.raises(IncompatibleStateError, match=said):
                queries.store("kept", wait="1m").get(new)
            with served(queries) as url:
                for what in ("get", "entries", "changes"):
                    text = json.dumps(after.to_json(new))
                    status, answer = ask(url, f"/v1/stores/kept/{what}", given={"key": text, "wait": "20000"})
                    assert (status, answer["error"]["code"]) == (409, "not_readable")


def test_a_server_of_another_program_forwards_nothing(tmp_path: Path) -> None:
    """The server of the program that runs leaves out fields that it does not know: it found another key."""
    made = application(tmp_path, of(Seat1), of(Seat1), "int")
    keep(made, Seat1("a"), serialize=of(Seat1).serialize)
    elsewhere = {"state_dir": str(tmp_path / "elsewhere")}
    same, other = (application(tmp_path, of(each), of(each), "int", **elsewhere) for each in (Seat1, Seat2))
    with closing(open_log(made.settings)) as log, ExitStack() as stack:
        here, *others = (
            stack.enter_context(served(stack.enter_context(Queries.of_this_machine(each))))
            for each in (made, same, other)
        )
        note_task_servers("app", log, [TaskServer(here, gethostname())])
        for url, expected, key in zip(others, (200, 409), ({"row": "a"}, {"row": "a", "number": 5}), strict=True):
            given = {"key": json.dumps(key), "wait": "20000"}
            assert ask(url, "/v1/stores/kept/get", given=given)[0] == expected
            assert ask(url, "/v1/stores/kept/entries", given={"wait": "20000"})[0] == expected
            body = json.dumps({"keys": [key]}).encode()
            assert ask(url, "/v1/stores/kept/get", method="POST", body=body)[0] == expected


def test_a_key_with_a_field_that_its_type_lacks_is_refused(tmp_path: Path) -> None:
    """A client of the next program got the value of another key: that without the field."""
    made = application(tmp_path, of(Seat1), of(Seat1), "int")
    keep(made, Seat1("a"), serialize=of(Seat1).serialize)
    given: dict[str, Any]
    with Queries.of_this_machine(made) as queries, served(queries) as url, Client(url) as client:
        store = client.store("kept", wait="20s")
        assert store.get(Seat1("a")) is not None
        for given in ({"key": Seat2("a", 5)}, {"start": Seat2("a", 5)}, {"key": {"row": "a", "nubmer": 5}}):
            with pytest.raises(QueryError, match="nu[a-z]*: keys of Seat1 have no such field") as refused:
                store.get(**given) if "key" in given else list(store.entries(**given))
            assert refused.value.status == 400
        with pytest.raises(QueryError, match="no such field"):
            store.get_many([Seat1("a"), Seat2("a")])
        with pytest.raises(QueryError, match="no such field"):
            store.changes(Seat2("a"))


def test_a_program_whose_keys_have_the_same_bytes_is_asked(tmp_path: Path) -> None:
    keep(application(tmp_path, of(Seat1), of(Seat1), "int"), Seat1("a"), serialize=of(Seat1).serialize)
    other = application(tmp_path, of(Seat3), of(Seat3), "int")
    for open_queries in (Queries.of_this_machine, Queries.from_changelog):
        with open_queries(other) as queries:
            assert queries.store("kept", wait="1m").get(Seat3("a")) == 1000


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
@pytest.mark.parametrize("declare", [window_store, session_store, versioned_store, lru_map])
def test_a_program_with_another_kind_of_store_follows_nothing(tmp_path: Path, changelog: str, declare: Any) -> None:
    """Its readers waited for ever: rows of another kind have none of their keys, and the position went on over them."""
    before = application(tmp_path, "str", "str", "int", changelog=changelog)
    keep(before, "a")
    options: dict[Any, dict[str, Any]] = {
        window_store: {"retention": "1h", "window_size": "1s"},
        session_store: {"retention": "1h"},
        versioned_store: {"history_retention": "1h"},
        lru_map: {"max_entries": 3},
    }
    topology = Topology().add_source("in", "in", key_serde="str")
    topology.add_processor(
        "keep", Keep, "in", stores=[declare("kept", key_serde="str", value_serde="int", **options[declare])]
    )
    other = Application(
        "app", topology, **{each: getattr(before.settings, each) for each in ("log", "changelog", "data_dir")}
    )
    for open_queries in (Queries.of_this_machine, Queries.from_changelog):
        with open_queries(other) as queries, served(queries) as url:
            ended: list[Any] = []
            reader = threading.Thread(target=lambda: ended.append(_error_of_reader(queries)), daemon=True)  # noqa: B023
            reader.start()
            reader.join(10)
            assert [type(each) for each in ended] == [ConfigError] and "as one of kind 'key_value'" in str(ended[0])
            status, answer = ask(url, "/v1/stores/kept/changes", given={"wait": "20000"})
            assert status == 400 and "give the program that ran last" in answer["error"]["message"]


def _error_of_reader(queries: Queries) -> Any:
    try:
        with queries.store("kept").changes() as changes:
            return next(changes)
    except PenstockError as error:
        return error


@pytest.mark.parametrize("stores", [[], [key_value_store("other")]])
def test_a_program_with_a_sub_topology_in_front_is_told(tmp_path: Path, stores: Any) -> None:
    """It was said that the application had not run since its last reset, or that its program had not begun to run."""
    before = application(tmp_path, "str", "str", "int")
    keep(before, "a")
    topology = Topology().add_source("first", "first").add_processor("also", Keep, "first", stores=stores)
    topology.add_source("in", "in", key_serde="str")
    topology.add_processor("keep", Keep, "in", stores=[key_value_store("kept", key_serde="str", value_serde="int")])
    settings = {each: getattr(before.settings, each) for each in ("log", "changelog", "data_dir")}
    other = Application("app", topology, **settings)
    for open_queries in (Queries.of_this_machine, Queries.from_changelog):
        with open_queries(other) as queries, served(queries) as url:
            with pytest.raises(
                ConfigError, match="saved in sub-topology 0, and .* in sub-topology 1: give the program"
            ):
                queries.store("kept", wait="1m").get("a")
            for what in ("get?key=a", "entries", "changes"):
                status, answer = ask(url, f"/v1/stores/kept/{what}")
                assert status == 400 and "was saved in sub-topology 0" in answer["error"]["message"]
            if stores:
                with pytest.raises(StoreUnavailableError, match="has not begun to run|does not have the store yet"):
                    queries.store("other", wait="0ms").get("a")
    with closing(open_log(other.settings)) as log, pytest.raises(ConfigError, match="was saved in sub-topology 0"):
        tasks_with(other, log, "kept")


def test_a_store_in_a_sub_topology_behind_comes_when_it_runs(tmp_path: Path) -> None:
    """It was said that the application had not run since its last reset."""
    before = application(tmp_path, "str", "str", "int")
    keep(before, "a")
    topology = Topology().add_source("in", "in", key_serde="str")
    topology.add_processor("keep", Keep, "in", stores=[key_value_store("kept", key_serde="str", value_serde="int")])
    topology.add_source("last", "last").add_processor("also", Keep, "last", stores=[key_value_store("other")])
    settings = {each: getattr(before.settings, each) for each in ("log", "changelog", "data_dir")}
    with Queries.of_this_machine(Application("app", topology, **settings)) as queries:
        assert queries.store("kept").get("a") == 1000
        with pytest.raises(
            StoreUnavailableError, match="no store 'other' .*: the program with it has not begun to run"
        ):
            queries.store("other", wait="0ms").get("a")


def test_a_program_that_adds_a_ttl_is_asked_once_it_has_run(tmp_path: Path) -> None:
    """The error was that of an index that is not there."""
    keep(application(tmp_path, "str", "str", "int"), "a")
    topology = Topology().add_source("in", "in", key_serde="str")
    store = key_value_store("kept", key_serde="str", value_serde="int", ttl="1h")
    topology.add_processor("keep", Keep, "in", stores=[store])
    after = Application("app", topology, log=f"local:{tmp_path}/log", data_dir=str(tmp_path))
    for open_queries in (Queries.of_this_machine, Queries.from_changelog):
        with open_queries(after) as queries, pytest.raises(ConfigError, match="give the program that ran last, until"):
            queries.store("kept", wait="1m").get("a")
    keep(after, "b")
    for open_queries in (Queries.of_this_machine, Queries.from_changelog):
        with open_queries(after) as queries:
            assert queries.store("kept", wait="1m").get_many(["a", "b"]) == [1000, 1000]


KEY = '{"type": "record", "name": "Key", "fields": [{"name": "id", "type": "string"}]}'


def test_queries_register_no_schema(tmp_path: Path) -> None:
    """The key of a store has the subject that the program gave it, and so has that of its topic."""
    made: AvroSerde[Any] = AvroSerde(KEY, registry="mock://queries")
    program = application(tmp_path, made, made, "int")
    topic = made.bind("in", is_key=True)
    keep(program, *({"id": each} for each in "abc"), serialize=topic.serialize)
    client = made.client
    before = client.get_subjects()
    assert set(before) == {"in-key", "Key"}
    fixed = AvroSerde(KEY, registry="mock://queries", register=False)
    for each in (program, application(tmp_path, fixed, fixed, "int")):
        for open_queries in (Queries.of_this_machine, Queries.from_changelog):
            with open_queries(each) as queries, served(queries) as url:
                key = {"key": '{"id": "b"}', "wait": "20000"}
                assert ask(url, "/v1/stores/kept/get", given=key) == (200, {"key": {"id": "b"}, "value": 1000})
        with pytest.raises(ConfigError, match="key '5' does not fit the key serde AvroSerde"):
            StoreText(each, each.program.subtopologies[0].stores[0]).key_of_text("5")
    assert client.get_subjects() == before


def test_a_value_that_cannot_be_read_is_not_shown(tmp_path: Path) -> None:
    made = application(tmp_path, "str", "str", Unreadable())
    keep(made, "a")
    with Queries.of_this_machine(made) as queries, served(queries, masked=["kept"]) as url:
        for path, given in (("get", {"key": "a"}), ("entries", {})):
            status, answer = ask(url, f"/v1/stores/kept/{path}", given=given)
            assert (status, answer["error"]["code"]) == (409, "not_readable")
            assert "secret" not in answer["error"]["message"]


def test_a_change_whose_key_cannot_be_read_ends_the_reader(tmp_path: Path) -> None:
    """It waited for ever, while its changes were read again ten times a second."""
    made = application(tmp_path, "str", Raising(), "int", value_serde="bytes")
    keep(made, "known")
    with Queries.of_this_machine(made) as queries, queries.store("kept").changes() as changes:
        keep(made, "known", "unknown")
        ended: list[Any] = []
        reader = threading.Thread(target=lambda: ended.append(_error_of(changes)), daemon=True)
        reader.start()
        reader.join(30)
    assert [str(each) for each in ended] == ["store 'kept': a change cannot be read: KeyError: 'unknown'"]
    assert isinstance(ended[0], SerdeError)


def _error_of(changes: Iterator[Any]) -> BaseException | None:
    try:
        for _ in changes:
            pass
    except PenstockError as error:
        return error
    return None


def test_a_key_that_is_null_fits_no_store(tmp_path: Path) -> None:
    made = application(tmp_path, "msgpack", "msgpack", "int", value_serde="bytes")
    keep(made, "a", "b", serialize=make_serde("msgpack", "keys").serialize)
    with Queries.of_this_machine(made) as queries, served(queries) as url:
        for name in ("key", "start"):
            for text in ("null", '{"!null": true}'):
                status, answer = ask(url, "/v1/stores/kept/entries", given={name: text})
                assert status == 400 and "no key is null" in answer["error"]["message"], answer


def test_pages_have_each_key_once_also_where_python_calls_them_equal(tmp_path: Path) -> None:
    made = application(tmp_path, "msgpack", "msgpack", "int", value_serde="bytes")
    serialize = make_serde("msgpack", "keys").serialize
    moments = [datetime(2024, 1, 1, tzinfo=timezone(timedelta(0), name)) for name in "abcdefghijkl"]
    keys = [*moments, *((float("nan"), number) for number in range(6))]
    keep(made, *(each for each in keys if default_partitioner(serialize(each), 2) == 0), serialize=serialize)
    with Queries.of_this_machine(made) as queries, served(queries) as url:
        expected = ask(url, "/v1/stores/kept/entries")[1]["entries"]
        for limit in (1, 2, 3):
            given: dict[str, Any] = {"limit": limit}
            found: list[Any] = []
            while len(found) <= len(expected):
                page = ask(url, "/v1/stores/kept/entries", given=given)[1]
                found += page["entries"]
                if page["page"] is None:
                    break
                given["page"] = page["page"]
            assert found == expected


@pytest.mark.parametrize("is_windowed", [False, True])
def test_clients_ask_for_keys_with_fields_inside_of_fields(tmp_path: Path, is_windowed: bool) -> None:
    seat = Seat(Place(1, Status.OPEN), (Status.OPEN,), timedelta(days=1, seconds=3))
    serde: Serde[Any] = TimeWindowedSerde(of(Seat), 10) if is_windowed else of(Seat)
    key = Windowed(seat, 0, 10) if is_windowed else seat
    made = application(tmp_path, serde, serde, "int", value_serde="bytes")
    keep(made, key, serialize=serde.serialize)
    with Queries.of_this_machine(made) as queries, served(queries) as url, Client(url) as client:
        store = client.store("kept")
        found = store.get(key)
        assert found is not None and found.value == 1000
        assert store.get_many([key]) == list(store.entries(key=key)) == [found]


def test_text_that_only_python_takes_for_json_is_text(tmp_path: Path) -> None:
    made = application(tmp_path, "msgpack", "msgpack", "int")
    text = StoreText(made, made.program.subtopologies[0].stores[0])
    for key in ("NaN", "Infinity", "-Infinity", "[NaN]"):
        assert text.key_of_text(key) == key
    assert text.key_of_text("1.5") == 1.5
