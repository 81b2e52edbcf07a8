"""Keys of stores with a schema in a registry: its id is in front of each, so another schema finds no row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Application,
    ConfigError,
    IncompatibleStateError,
    OutputBatch,
    Processor,
    Record,
    Serde,
    TopicPartition,
    Topology,
    key_value_store,
)
from penstock.plugins.dsl import TimeWindowedSerde
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.serdes.registry.avro import AvroSerde
from penstock.plugins.serdes.registry.json_schema import JsonSchemaSerde
from penstock.plugins.serdes.registry.protobuf import ProtobufSerde
from penstock.serdes import ListSerde

from ..processes import opened_workers
from .shop_messages import FIELD, declared, made

REGISTRY: Any = {"registry": "mock://keys"}
_id = FIELD(name="id", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
_more = FIELD(name="more", number=2, type=FIELD.TYPE_INT64, label=FIELD.LABEL_OPTIONAL)


@dataclass
class Customer:
    """A customer."""

    id: str


Described: Any = dataclass(type("Customer", (), {"__annotations__": {"id": str}, "__doc__": "Who buys."}))


def message(*others: Any) -> Any:
    """Return the class of a key, from a file in which other messages are."""
    return made("keys", declared("Key", _id), *others)["Key"]


def application(key_and_type: tuple[Any, Any], directory: Path) -> Application:
    key, new = key_and_type

    class Count(Processor):
        def process(self, record: Record) -> None:
            counts, found = self.context.get_store("counts"), new(record.value)
            counts.put(found, (counts.get(found) or 0) + 1)
            self.context.forward(record.with_value(str(counts.get(found))))

    topology = Topology().add_source("in", "in", value_serde="str").add_processor(
        "count", Count, "in", stores=[key_value_store("counts", key_serde=key, value_serde="int")]
    ).add_sink("out", "out", "count", value_serde="str")  # fmt: skip
    return Application("app", topology, log="memory:x", changelog="directory:changelog", data_dir=str(directory))


def run(made: Application, log: MemoryLog) -> bytes | None:
    """Count "a" once more; return the count."""
    log.append(OutputBatch("in", [None], [b"a"], [1], None, [[0]]))
    with opened_workers(made, log) as [worker]:
        worker.run_batch(log.end_offsets(worker.partitions), 0)
    out = TopicPartition("out", 0)
    return [value for batch in log.fetch(out, 0, log.end_offsets([out])[out], 1 << 20) for value in batch.values][-1]


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog()
    for topic in ("in", "out"):
        made.create_topic(topic, 1)
    return made


def as_protobuf(key: Any) -> tuple[Any, Any]:
    return ProtobufSerde(key, **REGISTRY), lambda text: key(id=text)


def as_json(key: Any) -> tuple[Any, Any]:
    return JsonSchemaSerde(key, **REGISTRY), key


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (as_protobuf(message(declared("Value", _id))), as_protobuf(message(declared("Value", _id, _more)))),
        (as_json(Customer), as_json(Described)),
    ],
)
def test_another_schema_in_which_the_fields_are_the_same_is_refused(
    log: MemoryLog, tmp_path: Path, before: Any, after: Any
) -> None:
    """No key was found, so all counts began again: of a message whose file has others, a class with another text."""
    assert [run(application(before, tmp_path), log) for _ in "12"] == [b"1", b"2"]
    with pytest.raises(
        IncompatibleStateError, match="key_serde another schema.*: its rows would not be found by their"
    ):
        run(application(after, tmp_path), log)
    assert run(application(before, tmp_path), log) == b"4", "the record of the refused start counts as well"


def without_check_sum(serde: Serde[Any]) -> str:
    """Return the written form of a serde as earlier versions made it."""
    name, _, data = serde.written_form().partition("(")
    form: Any = json.loads(data[:-1])
    (form[1] if isinstance(form, list) else form).pop("" if isinstance(form, list) else "$comment")
    return f"{name}({json.dumps(form, separators=(',', ':'))})"


@pytest.mark.parametrize("serde", [as_protobuf(message())[0], as_json(Customer)[0]])
def test_a_store_from_before_its_form_had_a_check_sum_continues(serde: Serde[Any]) -> None:
    form = without_check_sum(serde)
    assert form != serde.written_form()
    assert serde.unreadable(form) == serde.unfindable(form) == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (as_protobuf(message())[0], as_protobuf(message(declared("Value")))[0]),
        (as_json(Customer)[0], as_json(Described)[0]),
    ],
)
def test_values_of_such_a_schema_are_read(before: Serde[Any], after: Serde[Any]) -> None:
    assert after.unreadable(before.written_form()) == ""
    assert ListSerde(after).unfindable(ListSerde(before).written_form()) != ""


@pytest.mark.parametrize("form", [AvroSerde, JsonSchemaSerde])
@pytest.mark.parametrize("wrap", [lambda keys: keys, ListSerde, lambda keys: TimeWindowedSerde(keys, 10)])
def test_keys_without_a_schema_of_their_own_are_refused(
    log: MemoryLog, tmp_path: Path, form: Any, wrap: Callable[[Any], Any]
) -> None:
    """After the next version of the subject the count of each key began again."""
    by_newest = wrap(form(subject="in-key", **REGISTRY))
    form('{"type": "string"}', subject="in-key", **REGISTRY).prepare(writes=True)
    by_newest.prepare(writes=True)
    with pytest.raises(ConfigError, match=r"store 'counts', key_serde: .* the next version of subject 'in-key': give"):
        run(application((by_newest, str), tmp_path), log)
    wrap(form('{"type": "string"}', subject="in-key", **REGISTRY)).check_keys()
