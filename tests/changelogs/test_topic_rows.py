"""Rows as records of a changelog topic, for the store kinds of another package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.hooks import Registry, hookimpl
from penstock.plugins.changelogs.topic import decode, encode, rows_of
from penstock.record import RecordBatch, TopicPartition
from penstock.store import BytesStore, StateStore, StoreContext, StoreKind, TopicRows
from penstock.store.envelope import PLAIN
from penstock.store.kept_store import KeptStore

PARTITION = TopicPartition("changelog", 0)


class Numbered(TopicRows):
    """A row has bytes of the store's own before the user's key, as many as the fixed option says."""

    def __init__(self, fixed_options: Mapping[str, int]) -> None:
        self._own = fixed_options["own"]

    def record_of(self, row_key: bytes, data: bytes | None) -> tuple[bytes, bytes | None, int | None]:
        return row_key[self._own :] + row_key[: self._own], data, 7

    def row_of(self, key: bytes, data: bytes | None, timestamp: int) -> tuple[bytes, bytes | None]:
        assert timestamp == 7
        return key[-self._own :] + key[: -self._own], data


def build(spec: Any, bytes_store: BytesStore, context: StoreContext) -> StateStore:
    raise NotImplementedError


class Acme:
    @hookimpl
    def penstock_store_kinds(self) -> dict[str, Any]:
        return {"acme.numbered": StoreKind(build, Numbered), "acme.plain": build}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry([("acme", "acme", "1.0", Acme())], {})
    monkeypatch.setattr("penstock.plugins.changelogs.topic.registry", lambda: registry)


def test_a_kind_says_how_its_rows_are_records() -> None:
    topic_rows = rows_of(KeptStore("memory", kind="acme.numbered", fixed_options={"own": 2}))
    rows = [(b"01key", PLAIN + b"value"), (b"02other", None)]
    sent = encode(rows, PARTITION, False, 100, topic_rows)
    assert sent.keys == [b"key01", b"other02"]
    assert sent.timestamps == [7, 7]
    read = RecordBatch("changelog", 0, [0, 1], sent.keys, sent.values, sent.timestamps, None, 2)
    assert list(decode(read, False, topic_rows)) == rows


def test_the_rows_of_another_packages_function_are_records_as_they_are() -> None:
    topic_rows = rows_of(KeptStore("memory", kind="acme.plain"))
    rows = [(b"key", b"any bytes"), (b"other", None)]
    sent = encode(rows, PARTITION, False, 100, topic_rows)
    assert (sent.keys, sent.values) == ([b"key", b"other"], [b"any bytes", None])
    read = RecordBatch("changelog", 0, [0, 1], sent.keys, sent.values, sent.timestamps, None, 2)
    assert list(decode(read, False, topic_rows)) == rows
