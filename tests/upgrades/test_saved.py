"""State that an earlier commit wrote is read, and continued as that commit did it; and this version still writes the
same bytes."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.hooks import registry
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from tests.serdes.test_kafka_bytes import WRITTEN

from .base import comparable
from .dsl_programs import Days
from .kafka_dump import replay
from .saved import NAMES, SERDES, VERBS, Saved, Verbs, application, unpack

KINDS = {"local": Saved, "verbs": Verbs}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """What is in the archive."""
    return unpack(tmp_path / "old")


@pytest.mark.parametrize("place", ["the host's copy", "the changelog"])
@pytest.mark.parametrize("name", KINDS)
def test_what_was_saved_is_continued(old: Path, name: str, place: str) -> None:
    if place == "the changelog":
        shutil.rmtree(old / name / "state")
    with closing(KINDS[name](old / name)) as made:
        assert_expected(made.go_on(), old / name)


@pytest.mark.broker
def test_what_was_saved_on_kafka_is_continued(old: Path) -> None:
    """On a broker of its own: what was saved has names that other runs may have, too."""
    for copy in (old / "kafka" / "state").glob("*-topic"):
        shutil.rmtree(copy)
    with KafkaBroker() as broker:
        replay(broker.bootstrap, json.loads((old / "kafka.json").read_text()))
        with closing(Saved(old / "kafka", (KafkaLog(broker.bootstrap), f"kafka:{broker.bootstrap}"))) as made:
            assert_expected(made.go_on(), old / "kafka")


def assert_expected(found: dict[str, Any], directory: Path) -> None:
    expected = json.loads((directory / "expected.json").read_text())
    assert found.keys() == expected.keys()
    for each in expected:
        wanted = _with_own_ends(expected[each]) if each.startswith("windows of one's own") else expected[each]
        if each in CLOSED_ABOVE:  # the version of the archive sent no window before a record had closed one
            wanted = [expected["suppress, idle"][0], []]
        assert comparable(found[each]) == comparable(wanted), f"{each!r} is continued in another way"


def _with_own_ends(expected: Any) -> Any:
    """Return results with the ends of the windows: the version of the archive gave each the length of the longest."""

    def windowed(match: re.Match[str]) -> str:
        start = int(match[1])
        return f"start={start}, end={Days(1_000).end_of(start)}"

    return json.loads(re.sub(r"start=(\d+), end=\d+", windowed, json.dumps(expected)))


@pytest.mark.parametrize("name", KINDS)
def test_the_same_bytes_are_written(old: Path, tmp_path: Path, name: str) -> None:
    with closing(KINDS[name](tmp_path / "new")) as saved:
        saved.make()
        now = saved.raw()
    with closing(KINDS[name](old / name)) as saved:
        before = saved.raw()
    for each in before.keys() - CLOSED_ABOVE:
        assert now[each].keys() == before[each].keys()
        for part in before[each]:
            if "foreign_key" in each and part.endswith(ANSWERS):
                continue
            made, wanted = now[each][part], before[each][part]
            if "sliding" in each or "sessions" in each:
                made, wanted = _without_expiry(made), _without_expiry(wanted)
            assert made == wanted, f"{part} of {each!r} is kept in another format: see tests/upgrades/saved.py"


CLOSED_ABOVE = {"suppress, window_closes, idle"}
"""Where windows have left a suppression by `idle=`, the aggregation above takes no records of theirs; the version of
the archive did, and dropped the results."""


ELSEWHERE = {"void", "avro", "json_schema", "protobuf", "contrib.debezium"}
"""Serdes whose bytes are no part of the archive: they are in tests/serdes and tests/contrib."""
ANSWERS = "foreign-subscription-response-topic", "engine state"
"""The answers of a join by foreign key, and their times: in the version of the archive with rows that waited in a
record cache."""


def _without_expiry(part: Any) -> Any:
    """Return the rows of a store without the time up to which they have expired.

    The version of the archive kept sliding windows and sessions for a ms or two less.
    """
    if isinstance(part, dict):
        return {key: _own_row(value) if key == b"" else value for key, value in part.items()}
    if isinstance(part, list):
        return [(row[0], _own_row(row[1]), *row[2:]) if row[0] == b"" else row for row in part]
    return part


def _own_row(data: bytes) -> bytes:
    """Return the newest time and the number of rows, which are before and behind the time of the expiry."""
    return data[:-16] + data[-8:]


def test_everything_that_keeps_state_is_saved(old: Path) -> None:
    """A new kind of store, serde or verb of the DSL is added to tests/upgrades/saved.py or dsl_programs.py.

    A serde that is younger than the archive may be in the table of Kafka's bytes instead; `void` writes none.
    """
    kept = {type(each).__name__ for name in NAMES for each in _stores(name)}
    assert {each.__name__ for each in _all_kinds()} <= kept
    # Deletions of an inner join by foreign key are forgotten when they are answered.
    expected = json.loads((old / "local" / "expected.json").read_text())
    empty = {store for each in expected.values() for store, entries in each["contents"].items() if entries == []}
    assert empty == {"named-subscription-store-deletions"}
    recorded = {each.partition(":")[0] for each in [*SERDES, *WRITTEN]}
    assert recorded - {"celsius"} == set(registry().names("serde")) - ELSEWHERE
    assert json.loads((old / "verbs" / "expected.json").read_text()).keys() == VERBS.keys()


def _stores(name: str) -> list[Any]:
    return list(application(Path("unused"), name).program.stores.values())


def _all_kinds() -> list[type]:
    from penstock.store.specs import StoreSpec

    return [each for each in StoreSpec.__subclasses__() if each.__module__.startswith("penstock")]
