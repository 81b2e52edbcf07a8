"""copy(): writes the rows of a source to a topic, each once, in transactions that have the position of the source."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from penstock import (
    Application,
    Clock,
    Commit,
    ConfigError,
    FencedError,
    Headers,
    Log,
    RecordRefusedError,
    Settings,
    SystemClock,
    TaskCommitter,
    TopicExistsError,
    TopicPartition,
    UnknownTopicError,
)
from penstock.plugins.engine.task.locations import open_log
from penstock.program.serdes import SerdeLike, serdes_of_topic

from .records import Columns, RecordMaker
from .rows import FrameRows, Rows, is_frame
from .source import CopyError, RowBatch, Source

BATCH_ROWS = 10_000
"""Rows of one transaction."""
_ID_PREFIX = "copy-"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,150}")


@dataclass(frozen=True)
class CopySummary:
    """A copy after its last commit: the rows that this call wrote, and those of all calls."""

    name: str
    topic: str
    rows: int
    total: int


def copy(
    source: Any,
    topic: str,
    *,
    log: Log | Settings | Application | str = "local:log",
    name: str | None = None,
    key: str | Sequence[str] = (),
    value: str | None = None,
    timestamp: str | None = None,
    headers: Headers | Mapping[str, bytes | str | None] = (),
    header_columns: str | Sequence[str] = (),
    tombstones: bool = False,
    key_serde: SerdeLike = None,
    value_serde: SerdeLike = None,
    partitions: int | None = None,
    batch_rows: int = BATCH_ROWS,
    order_by: str | Sequence[str] = (),
    follow: bool = False,
    restart: bool = False,
    on_progress: Callable[[CopySummary, str], None] | None = None,
    clock: Clock | None = None,
) -> CopySummary:
    """Copy the rows of a source to a topic, each once, and return when its present end is reached.

    `source`: `JsonLines`, `ParquetFiles`, `SqliteRows`, `PostgresRows` or another `Source`; a DataFrame of pandas, or
    of Spark with `order_by`; or an iterable of mappings or dataclasses. A call of the same `name` and topic continues
    behind the last row that was committed, whatever ended the call before. `name`: by default that of the file or
    table. `log`: its NAME:LOCATION, or what has that setting.

    A record is made of columns: `key`, one or several; `value`, one (None: the row as a whole); `timestamp`;
    `headers`, which all records have, and `header_columns`. A null in the column of `value` is an error, or with
    `tombstones` a tombstone. Serdes are by default those of `log`, or `str` for keys; and `json` for values.

    `partitions`: of the topic, which is made if it is missing. `batch_rows`: rows of a transaction. `follow`: wait for
    new rows, without an end. `restart`: forget the position, and copy all rows again. `on_progress` is called after
    each commit, and when the copy waits, with the reason.

    Raises CopyError if the source cannot be read, or is not the same up to the position; FencedError if another call
    of the same name has begun; otherwise as `TaskCommitter.commit`.

    >>> from tempfile import TemporaryDirectory
    >>> rows = [{"id": "a", "n": 1}, {"id": "b", "n": 2}]
    >>> with TemporaryDirectory() as directory:
    ...     here = f"local:{directory}/log"
    ...     first = copy(rows[:1], "orders", log=here, name="orders", key="id", partitions=1)
    ...     again = copy(rows, "orders", log=here, name="orders", key="id")
    >>> first.rows, again.rows, again.total
    (1, 1, 2)
    """
    columns = Columns(
        _names(key), value, timestamp, _headers(headers), _names(header_columns), tombstones
    )  # fmt: skip
    if batch_rows < 1:
        raise ConfigError(f"batch_rows: expected a number from 1 up, found {batch_rows!r}")
    with _opened(log) as (opened, settings):
        checked = _checked_source(source, order_by)
        named = _checked_name(name, checked)
        _prepare_topic(opened, topic, partitions, checked)
        serdes = serdes_of_topic(key_serde, value_serde or "json", settings, "the copy", topic)
        maker = RecordMaker(topic, columns, *serdes)
        target = _Target(opened, named, topic, checked)
        with closing(target):
            if restart:
                target.forget()
            return _copy(
                checked, maker, target, batch_rows, follow=follow, on_progress=on_progress,
                clock=clock or SystemClock(),
            )  # fmt: skip


def _copy(
    source: Source,
    maker: RecordMaker,
    target: _Target,
    batch_rows: int,
    *,
    follow: bool,
    on_progress: Callable[[CopySummary, str], None] | None,
    clock: Clock,
) -> CopySummary:
    pause = threading.Event()  # never set: an interruptible wait
    report = on_progress or (lambda summary, reason: None)
    with target.explained(), closing(source.open(target.position, follow=follow)) as reader:
        while True:
            rows = reader.read(batch_rows)
            if rows is not None:
                if rows.rows:
                    target.commit(rows, maker, clock.now_ms())
                    report(target.summary, "")
            elif follow or reader.waiting_for:
                report(target.summary, reader.waiting_for)
                pause.wait(reader.poll_seconds)
            else:
                return target.summary


class _Target:
    """The topic, and the position of the copy: the commit of a task without a program.

    The task has the topic's first partition as its input, so that a log which deletes the topic deletes the position.
    Its offset is the number of rows that were copied; the position of the source is its engine state.
    """

    def __init__(self, log: Log, name: str, topic: str, source: Source) -> None:
        self._name, self._topic, self._source = name, topic, source
        self._partition = TopicPartition(topic, 0)
        self._committer: TaskCommitter = log.open_lasting_committer(_ID_PREFIX + name, topic, [self._partition])
        self._rows = self._total = 0
        self.position: Any = None
        try:
            self._read()
        except BaseException:
            self._committer.close()
            raise

    def _read(self) -> None:
        committed = self._committer.committed
        if committed is None or self._partition not in committed.positions:
            return  # a log may keep the commit of a topic that was deleted, without its position
        saved = json.loads(committed.engine_state)
        if saved is None:
            return
        if saved["source"] != self._source.kind:
            raise CopyError(
                f"copy {self._name!r} to topic {self._topic!r} was one of {saved['source']}, and {self._source} is "
                f"{self._source.kind}: give this copy another name"
            )
        self._total, self.position = committed.positions[self._partition], saved["position"]

    @property
    def summary(self) -> CopySummary:
        return CopySummary(self._name, self._topic, self._rows, self._total)

    def forget(self) -> None:
        """Commit that nothing was copied."""
        if self._committer.committed is not None:
            with self.explained():
                self._committer.commit(Commit({self._partition: 0}, "", b"null"), [])
        self._total, self.position = 0, None

    def commit(self, rows: RowBatch, maker: RecordMaker, now_ms: int) -> None:
        """Write rows and the position behind them, in one transaction."""
        saved = {"source": self._source.kind, "position": rows.position}
        total = self._total + len(rows.rows)
        batch = maker.batch(rows, now_ms)
        try:
            self._committer.commit(Commit({self._partition: total}, "", json.dumps(saved).encode()), [batch])
        except RecordRefusedError as error:
            refused = (error.refuses(*each) for each in zip(batch.keys, batch.values, batch.timestamps, strict=True))
            index = next((index for index, is_refused in enumerate(refused) if is_refused), None)
            if index is None:
                raise
            raise CopyError(f"{rows.where(index)}: {error}") from error
        self._rows += len(rows.rows)
        self._total, self.position = total, rows.position

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say of a changed source, and of a fence, which copy it is and what can be done."""
        try:
            yield
        except FencedError as error:
            raise FencedError(
                f"copy {self._name!r} to topic {self._topic!r} was begun by another process, which continues it, or "
                "its transaction was ended; this one wrote nothing since its last commit"
            ) from error
        except CopyError as error:
            done = "no row was copied" if not self._total else f"rows copied before it: {self._total:,}"
            restart = (
                ". If this is another source, give its copy another name; to copy all rows again, restart it"
                if self.position is not None and not self._rows
                else ""
            )
            raise CopyError(f"{error} (copy {self._name!r} to topic {self._topic!r}: {done}{restart})") from error

    def close(self) -> None:
        """Release the committer."""
        self._committer.close()


def _names(columns: str | Sequence[str]) -> Sequence[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def _headers(headers: Headers | Mapping[str, bytes | str | None]) -> Headers:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)


@contextmanager
def _opened(log: Log | Settings | Application | str) -> Iterator[tuple[Log, Settings]]:
    """Open the log. One that is open is used as it is, and stays open.

    With each guarantee, outputs that are passed to a commit are in its transaction.
    """
    if isinstance(log, Log):
        yield log, Settings()
        return
    settings = log.settings if isinstance(log, Application) else log if isinstance(log, Settings) else Settings(log=log)
    with closing(open_log(settings)) as opened:
        yield opened, settings


def _checked_source(source: Any, order_by: str | Sequence[str]) -> Source:
    if is_frame(source):
        return FrameRows(source, _names(order_by))
    if order_by:
        raise ConfigError("order_by is for a Spark DataFrame; other sources have an order of their own")
    return source if isinstance(source, Source) else Rows(source)


def _checked_name(name: str | None, source: Source) -> str:
    """Return the name of the copy. Raises ConfigError."""
    if name is None:
        if not source.name:
            raise ConfigError(f"{source} have no name: name the copy, so that another call can continue it")
        name = re.sub(r"[^A-Za-z0-9._-]", "-", source.name)[:150]
    if not _NAME.fullmatch(name):
        raise ConfigError(f"name {name!r}: expected at most 150 letters, digits, '.', '_' and '-'")
    return name


def _prepare_topic(log: Log, topic: str, partitions: int | None, source: Source) -> None:
    """Make the topic if it is missing and `partitions` is a number. Raises ConfigError for another number."""
    topics = log.topics()
    if topic not in topics:
        if partitions is None:
            raise UnknownTopicError(
                f"topic {topic!r} does not exist: give the number of its partitions and the copy makes it, or "
                f"`penstock topics create {topic}`"
            )
        source.check()
        with suppress(TopicExistsError):
            log.create_topic(topic, partitions)
            return
        topics = log.topics()
    if partitions is not None and topics[topic].partitions != partitions:
        raise ConfigError(f"topic {topic!r} has {topics[topic].partitions} partitions, and {partitions} were given")
