"""The fence: no write commits after another process has written, whatever pyiceberg does when a commit fails."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyiceberg.exceptions import CommitFailedException

from penstock import SinkError, SinkMovedError, SinkPlace, SinkPosition, SinkRecord, SinkUnavailableError
from penstock.contrib.iceberg.fence import FencedCatalog, property_of, text_of

from .tables import COLUMNS, counted, open_catalog, sink

PLACE = SinkPlace("app", "target", "in", 0)
NAME = ("shop", "orders")
FOREIGN = pa.Table.from_pylist([{"name": "foreign", "value": "x"}])


def at(offset: int) -> SinkPosition:
    return SinkPosition("id", offset)


def records(*numbers: int) -> list[SinkRecord]:
    return [SinkRecord(f"k{number}", {"value": f"v{number}"}, 0, (), number) for number in numbers]


def rows(*numbers: int) -> dict[tuple[Any, ...], int]:
    return {(f"k{number}", f"v{number}"): 1 for number in numbers}


class Between:
    """A catalog that calls a function just before, or just after, the first commit that comes through it."""

    def __init__(self, inner: Any, before: Callable[[], object] = int, after: Callable[[], object] = int) -> None:
        self.inner = inner
        self.before = before
        self.after = after
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        self.commits += 1
        if self.commits == 1:
            self.before()
        answer = self.inner.commit_table(table, requirements, updates)
        if self.commits == 1:
            self.after()
        return answer


def opened(directory: Path, place: SinkPlace = PLACE, **acts: Callable[[], object]) -> tuple[Any, Between]:
    """Return a writer, and the catalog through which it commits."""
    writer: Any = sink(directory).open(place)
    writer._catalog.raw = between = Between(writer._catalog.raw, **acts)
    writer._lock = Lock()  # as if in a process of its own
    return writer, between


def data_files(directory: Path) -> int:
    return len(list((directory / "warehouse").rglob("*.parquet")))


def raised(error: Exception) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_process_that_was_frozen_before_its_commit_writes_nothing(tmp_path: Path, is_empty: bool) -> None:
    first = 0 if is_empty else 2
    follows = None if is_empty else at(2)
    if not is_empty:
        sink(tmp_path).open(PLACE).write(records(0, 1), None, at(2))
    successor = sink(tmp_path).open(PLACE)
    zombie, catalog = opened(
        tmp_path, before=lambda: successor.write(records(first, first + 1), follows, at(first + 2))
    )
    with pytest.raises(SinkMovedError, match=f"next_offset={first + 2}"):
        zombie.write(records(first, first + 1, first + 2), follows, at(first + 3))
    assert catalog.commits == 1
    successor.write(records(first + 2), at(first + 2), at(first + 3))
    assert counted(tmp_path) == rows(*range(first + 3))
    for writer in (zombie, successor):
        writer.close()


def test_a_commit_of_others_is_followed_with_the_same_data_file(tmp_path: Path) -> None:
    other = sink(tmp_path).open(SinkPlace("app", "target", "in", 1))
    foreign = open_catalog(tmp_path).load_table(NAME)

    def others() -> None:
        other.write(records(7, 8), None, at(9))
        foreign.append(FOREIGN)

    writer, catalog = opened(tmp_path, before=others)
    writer.write(records(0, 1), None, at(2))
    writer.write(records(2), at(2), at(3))
    assert catalog.commits == 3
    assert counted(tmp_path) == {**rows(0, 1, 2, 7, 8), ("foreign", "x"): 1}
    assert data_files(tmp_path) == 4
    assert "commit.retry.num-retries" not in foreign.refresh().properties
    for each in (writer, other):
        each.close()
    again = sink(tmp_path).open(PLACE)
    assert again.position == at(3)
    again.close()


def test_snapshots_that_expire_just_before_a_commit(tmp_path: Path) -> None:
    """pyiceberg's retry misses the snapshot from which the write began; the engine opens the sink again."""
    sink(tmp_path).open(PLACE).write(records(0), None, at(1))

    def others() -> None:
        with open_catalog(tmp_path) as catalog:
            table = catalog.load_table(NAME)
            table.append(FOREIGN)
            table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(seconds=1)).commit()

    writer, _ = opened(tmp_path, before=others)
    with pytest.raises(SinkUnavailableError, match="ValidationException: Cannot find starting snapshot"):
        writer.write(records(1), at(1), at(2))
    writer.close()
    again = sink(tmp_path).open(PLACE)
    assert again.position == at(1)
    again.write(records(1), at(1), at(2))
    again.close()
    assert counted(tmp_path) == {**rows(0, 1), ("foreign", "x"): 1}


def test_a_commit_whose_answer_says_that_it_failed(tmp_path: Path) -> None:
    """A proxy that sends a request twice gets the refusal of the second one."""
    writer, _ = opened(tmp_path, after=raised(CommitFailedException("main has changed")))
    writer.write(records(0, 1), None, at(2))
    writer.write(records(2), at(2), at(3))
    writer.close()
    assert counted(tmp_path) == rows(0, 1, 2)


def test_a_commit_without_an_answer(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path, after=raised(requests.ConnectionError("reset by peer")))
    with pytest.raises(SinkUnavailableError, match="cannot write: ConnectionError: reset by peer"):
        writer.write(records(0, 1), None, at(2))
    writer.close()
    again = sink(tmp_path).open(PLACE)
    assert again.position == at(2)
    again.close()
    assert counted(tmp_path) == rows(0, 1)


def test_others_that_never_stop_are_as_a_target_that_is_away(tmp_path: Path) -> None:
    writer, catalog = opened(tmp_path)
    catalog.inner = Between(catalog.inner)
    catalog.inner.commit_table = raised_by_commit
    with pytest.raises(SinkUnavailableError, match="has been updated by another process"):
        writer.write(records(0, 1), None, at(2))
    assert catalog.commits > 10
    assert data_files(tmp_path) == 1
    writer.close()
    assert counted(tmp_path) == {}


def raised_by_commit(*arguments: Any) -> Any:
    raise CommitFailedException("Table has been updated by another process")


# ---------------------------------------------------------------------------------------- another pyiceberg


def fenced(directory: Path) -> tuple[FencedCatalog, Any]:
    """Return the catalog of a write of two records to a new table, and the real one."""
    sink(directory).open(PLACE).close()
    catalog = open_catalog(directory)
    uuid = catalog.load_table(NAME).metadata.table_uuid
    return FencedCatalog(catalog, uuid, property_of(PLACE), None, at(2)), catalog


POSITION = {property_of(PLACE): text_of(at(2))}


def test_a_commit_of_another_form_is_refused(tmp_path: Path) -> None:
    made, catalog = fenced(tmp_path)
    rows = pa.Table.from_pylist([{"name": "a", "value": "b"}])

    def without_position(transaction: Any) -> None:
        transaction.append(rows)

    def with_another_position(transaction: Any) -> None:
        transaction.set_properties({property_of(PLACE): text_of(at(3))})
        transaction.append(rows)

    def without_rows(transaction: Any) -> None:
        transaction.set_properties(POSITION)

    def in_two_snapshots(transaction: Any) -> None:
        transaction.set_properties(POSITION)
        transaction.append(rows)
        transaction.append(rows)

    def to_another_branch(transaction: Any) -> None:
        transaction.set_properties(POSITION)
        transaction.append(rows, branch=None)

    for act in (without_position, with_another_position, without_rows, in_two_snapshots, to_another_branch):
        transaction = made.load_table(NAME).transaction()
        act(transaction)
        with pytest.raises(SinkError, match="pyiceberg .* makes another commit than this sink expects, so nothing was"):
            transaction.commit_transaction()
    with pytest.raises(NotImplementedError):
        made.drop_table(NAME)
    table = catalog.load_table(NAME)
    assert table.current_snapshot() is None and not table.properties.keys() & POSITION.keys()


def test_a_retry_that_does_not_read_the_position_is_refused(tmp_path: Path) -> None:
    """As a later pyiceberg may load the table by other ways than its catalog's `load_table`."""
    made, catalog = fenced(tmp_path)
    stale = made.load_table(NAME)
    catalog.load_table(NAME).append(FOREIGN)
    stale.metadata = catalog.load_table(NAME).metadata
    transaction = stale.transaction()
    transaction.set_properties(POSITION)
    transaction.append(FOREIGN)
    with pytest.raises(SinkError, match="another commit than this sink expects"):
        transaction.commit_transaction()
    assert counted(tmp_path) == {("foreign", "x"): 1}


def test_the_requirement_is_the_fence_s_own(tmp_path: Path) -> None:
    """Where pyiceberg sends none, a commit of others between is still found."""
    made, catalog = fenced(tmp_path)
    transaction = made.load_table(NAME).transaction()
    transaction.set_properties(POSITION)
    transaction.append(FOREIGN)
    catalog.load_table(NAME).append(FOREIGN)
    with pytest.raises(CommitFailedException, match="main was created concurrently"):
        made.commit_table(catalog.load_table(NAME), (), transaction._updates)
    assert counted(tmp_path) == {("foreign", "x"): 1}


# ---------------------------------------------------------------------------------------- tables that go


def test_a_table_that_was_deleted_or_replaced_while_it_is_written(tmp_path: Path) -> None:
    writer = sink(tmp_path).open(PLACE)
    writer.write(records(0), None, at(1))
    catalog = open_catalog(tmp_path)
    catalog.drop_table(NAME)
    with pytest.raises(SinkError, match="cannot write: NoSuchTableError: Table does not exist: shop.orders") as error:
        writer.write(records(1), at(1), at(2))
    assert not isinstance(error.value, SinkUnavailableError)
    sink(tmp_path).open(PLACE).close()
    with pytest.raises(SinkError, match="the table was deleted and made again while the application was running"):
        writer.write(records(1), at(1), at(2))
    writer.close()
    assert counted(tmp_path) == {}


def test_a_table_that_is_replaced_just_before_a_commit(tmp_path: Path) -> None:
    def replace() -> None:
        with open_catalog(tmp_path) as catalog:
            catalog.drop_table(NAME)
            catalog.create_table(NAME, pa.schema([(name, pa.string()) for name in COLUMNS]))

    writer, _ = opened(tmp_path, before=replace)
    with pytest.raises(SinkError, match="the table was deleted and made again"):
        writer.write(records(0), None, at(1))
    writer.close()
    assert counted(tmp_path) == {}


def test_a_position_that_somebody_wrote(tmp_path: Path) -> None:
    sink(tmp_path).open(PLACE).close()
    table = open_catalog(tmp_path).load_table(NAME)
    with table.transaction() as transaction:
        transaction.set_properties({property_of(PLACE): "5"})
    with pytest.raises(SinkError, match="its property 'penstock.position/app/target/in/0' is no position: '5'"):
        sink(tmp_path).open(PLACE)
