"""Values of every type and serde through every door: none comes out as another value, or is not found."""

from __future__ import annotations

import json
import pickle
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings

from penstock import OutputBatch, Serde, SerdeError, TopicPartition
from penstock.client import Client
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.operate.cli.text import TextSerde
from penstock.plugins.operate.console.store_views import StoreViews
from penstock.plugins.state.copies.key_tasks import KeyTasks
from penstock.plugins.state.queries.http.answers import Answers
from penstock.plugins.testing.contracts.serde_tests import same_value
from penstock.program.serdes import resolve_serde
from penstock.queries import Queries
from penstock.support.text_form import from_json, to_json

from ..cli.applications import run
from ..cli.conftest import console as console_fixture
from ..cli.console import Console
from ..queries.served import served
from .program import KEPT, application

TARGET = "tests.surface.program:application"
PARTITIONS = 2
EACH = 20
"""How many entries each topic and store have."""
console = console_fixture


@dataclass(frozen=True)
class Entries:
    """The records of one topic: by the bytes of the key, the key, the value and its bytes."""

    key: Serde[Any]
    value: Serde[Any]
    rows: dict[bytes, tuple[Any, Any, bytes]]


def drawn(name: str) -> Entries:
    """Return entries of a topic, always the same."""
    kept = KEPT[name]
    key, value = (resolve_serde(each, None, "test") for each in (kept.key_serde, kept.value_serde))
    rows: dict[bytes, tuple[Any, Any, bytes]] = {}

    @seed(1)
    @settings(max_examples=EACH, database=None, deadline=None, phases=[Phase.generate])
    @given(kept.keys, kept.values)
    def draw(one: Any, other: Any) -> None:
        rows[key.serialize(one)] = one, other, value.serialize(other)

    draw()
    return Entries(key, value, rows)


@pytest.fixture
def kept(console: Console) -> tuple[Console, dict[str, Entries]]:
    """The program's topics with drawn records, and its stores after a run."""
    every = {name: drawn(name) for name in KEPT}
    console("topics", "create", *every, *(f"copy-of-{name}" for name in every), "--partitions", str(PARTITIONS))
    with closing(open_log(application.settings)) as log:
        for name, each in every.items():
            raw = list(each.rows)
            batch = OutputBatch(name, list(raw), [each.rows[key][2] for key in raw], [7] * len(raw))
            tasks = KeyTasks(application, list(KEPT).index(name))
            names = [tasks.of(key, PARTITIONS)[0] for key, _, _ in each.rows.values()]
            batch.partitions = [(int(task.rpartition("_")[2]),) for task in names]
            log.append(batch)
    run(TARGET, subtopologies=len(KEPT))
    return console, every


def test_values_of_every_type_through_every_door(kept: tuple[Console, dict[str, Entries]]) -> None:
    console, every = kept
    with Queries.of_this_machine(application) as queries, served(queries) as url, Client(url) as client:
        answers = Answers(queries, list(every), [])
        for name, each in every.items():
            _through_queries(client, StoreViews(answers), name, each)
    for name, each in every.items():
        _through_files(console, name, each)
        _through_lines(console, name, each)
        _on_the_command_line(console, name, each)


def _through_queries(client: Client, views: StoreViews, name: str, each: Entries) -> None:
    store = client.store(name)

    def plain(serde: Serde[Any], value: Any) -> Any:
        """Return a value as a client has it, which knows no classes."""
        return from_json(json.loads(json.dumps(serde.to_json(value))))

    for key, value, _ in each.rows.values():
        entry = store.get(plain(each.key, key))
        assert entry is not None, f"{name}: {key!r} is not found"
        assert same_value(entry.value, plain(each.value, value)), f"{name}: {value!r} is {entry.value!r}"
        text = json.dumps(each.key.to_json(key))
        rows = views.store({"name": name, "key": text, "json_keys": "true"})
        assert rows["refused"] is None and len(rows["rows"]) == 1, f"{name}: {key!r} is not on the page: {rows}"
    found = store.get_many([plain(each.key, key) for key, _, _ in each.rows.values()])
    assert None not in found
    listed = {_text(entry.key): entry.value for entry in store.entries() if entry is not None}
    assert len(listed) == len(each.rows)
    for key, value, _ in each.rows.values():
        assert same_value(listed[_text(plain(each.key, key))], plain(each.value, value))


def _text(value: Any) -> str:
    return json.dumps(to_json(value))


_IN_COLUMNS = ("msgpack", "fields", "pickle", "numbers")
"""Columns of JSON text, of structs, of bytes, and of numbers."""


def _through_files(console: Console, name: str, each: Entries) -> None:
    for suffix in ("jsonl", "parquet") if name in _IN_COLUMNS else ("jsonl",):
        file, copy = f"{name}.{suffix}", ("--application-id", f"{suffix}-copy")
        console("state", "export", TARGET, name, "--output", file)
        console("state", "import", TARGET, name, file, *copy)
        rows = console.json_lines("state", "export", TARGET, name, *copy)
        found = {each.key.serialize(each.key.from_json(row["key"])): row for row in rows}
        assert found.keys() == each.rows.keys(), f"{name}: {suffix} has other keys"
        for raw, (_, value, _) in each.rows.items():
            again = each.value.from_json(found[raw]["value"])
            assert same_value(again, value), f"{name}: {suffix} made {again!r} of {value!r}"


def _through_lines(console: Console, name: str, each: Entries) -> None:
    if name in ("fields", "models"):  # their serdes have no names
        key, value = (TextSerde(serde, name, is_key=False) for serde in (each.key, each.value))
        for raw, (_, _, data) in each.rows.items():
            assert key.from_json(json.loads(json.dumps(key.to_json(raw)))) == raw
            assert value.from_json(json.loads(json.dumps(value.to_json(data)))) == data
        return
    options = ("--key-serde", str(KEPT[name].key_serde), "--value-serde", str(KEPT[name].value_serde))
    lines = console("consume", name, "--json", *options).stdout_bytes
    console("produce", f"copy-of-{name}", "--json-lines", *options, stdin=lines)
    for copied, first in zip(_records(f"copy-of-{name}"), _records(name), strict=True):
        if name == "pickle":  # equal values may have other bytes
            assert copied[:2] == first[:2] and same_value(pickle.loads(copied[2]), pickle.loads(first[2]))
        else:
            assert copied == first, f"{name}: {first} was written as {copied}"


def _records(topic: str) -> list[tuple[Any, ...]]:
    found = []
    with closing(open_log(application.settings)) as log:
        for number in range(PARTITIONS):
            partition = TopicPartition(topic, number)
            end = log.end_offsets([partition])[partition]
            for batch in log.fetch(partition, 0, end, 1 << 30):
                found += [(number, *row) for row in zip(batch.keys, batch.values, batch.timestamps, strict=True)]
    return found


def _on_the_command_line(console: Console, name: str, each: Entries) -> None:
    for key, value, _ in list(each.rows.values())[:1]:
        text = key if name == "text" else json.dumps(each.key.to_json(key))
        (row,) = console.json_lines("state", "get", TARGET, name, "--json", "--", text)
        assert same_value(each.value.from_json(row["value"]), value)


@pytest.mark.parametrize("offset", [timedelta(microseconds=-1), timedelta(microseconds=1), timedelta(seconds=-1)])
@pytest.mark.parametrize("name", [(), ("summer",)])
def test_small_offsets_of_time_zones_are_kept(offset: timedelta, name: tuple[str]) -> None:
    value = datetime(2024, 2, 29, tzinfo=timezone(offset, *name))
    assert same_value(from_json(json.loads(json.dumps(to_json(value)))), value)


def test_a_time_zone_that_is_none_is_refused() -> None:
    for zone in ("Europe", "", "Europe/Nowhere", 5):
        with pytest.raises(SerdeError, match="cannot be read as !datetime"):
            from_json({"!datetime": {"at": "2024-02-29", "fold": 0, "zone": zone}})
