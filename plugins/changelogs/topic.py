"""TopicChangelog: the history of a task's stores in compacted topics of the log, written in the task's own commits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from zlib import crc32

from penstock import (
    RESTORING,
    ChangelogError,
    Headers,
    Log,
    LogChangelog,
    OutputBatch,
    RecordBatch,
    Restore,
    StoreKind,
    TopicPartition,
    TopicRows,
    Work,
)
from penstock.hooks import registry
from penstock.store import Change, Changes
from penstock.store.backend import in_key_order
from penstock.store.envelope import PLAIN, unwrap, wrap
from penstock.store.kept_store import KeptStore, Layout
from penstock.store.specs import OWN
from penstock.support.names import changelog_topic
from penstock.support.packages import DISTRIBUTION

_KIND, _EXPIRY, _WALL_CLOCK_EXPIRY = "__penstock.timestamped", "__penstock.expiry", "__penstock.wall_clock_expiry"
_OURS = frozenset({_KIND, _EXPIRY, _WALL_CLOCK_EXPIRY})
_LONG = Struct(">q")


class _BytesAsTheyAre:
    """Rows of a kind that is not penstock's: their bytes are no envelope, and are the record's value as they are."""

    def record_of(self, row_key: bytes, data: bytes | None) -> tuple[bytes, bytes | None, int | None]:
        return row_key, None if data is None else PLAIN + data, None

    def row_of(self, key: bytes, data: bytes | None, timestamp: int) -> tuple[bytes, bytes | None]:
        return key, None if data is None else unwrap(data).value


def rows_of(kept: KeptStore) -> TopicRows | None:
    """Return the form of a store's rows as records; None where a row is an envelope, and its record has its key."""
    if kept.kind == OWN:
        return _BytesAsTheyAre()
    found = registry().find("store kind", kept.kind)
    kind = found.load()
    if isinstance(kind, StoreKind):
        return kind.topic_rows(kept.fixed_options)
    return None if found.package == DISTRIBUTION else _BytesAsTheyAre()


def encode(
    rows: Iterable[Change], partition: TopicPartition, stamped: bool, now_ms: int, topic_rows: TopicRows | None
) -> OutputBatch:
    """Return rows as records of a changelog topic; entries without a timestamp get `now_ms`."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    timestamps: list[int] = []
    headers: list[Headers] = []
    for key, data in rows:
        extra: Headers = ()
        timestamp = now_ms
        if topic_rows is not None:
            key, data, at = topic_rows.record_of(key, data)
            timestamp = now_ms if at is None else max(at, 1)
        keys.append(key)
        if data is None:
            values.append(None)
        elif not stamped and data[:1] == PLAIN:
            values.append(data[1:])
        else:
            envelope = unwrap(data)
            values.append(envelope.value)
            extra = envelope.headers
            if envelope.timestamp is not None:
                timestamp = envelope.timestamp
            if (envelope.timestamp is not None) != stamped or timestamp < 1:
                # The entry has no timestamp in a timestamped store, one in another store, or one that a log may change.
                kept = None if envelope.timestamp is None else _LONG.pack(envelope.timestamp)
                extra = (*extra, (_KIND, kept))
                timestamp = max(timestamp, 1)
            if envelope.expiry is not None:
                name = _WALL_CLOCK_EXPIRY if envelope.by_wall_clock else _EXPIRY
                extra = (*extra, (name, _LONG.pack(envelope.expiry)))
        timestamps.append(timestamp)
        headers.append(extra)
    targets = [(partition.partition,)] * len(keys)
    return OutputBatch(partition.topic, keys, values, timestamps, headers if any(headers) else None, list(targets))


def decode(batch: RecordBatch, stamped: bool, topic_rows: TopicRows | None) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the rows in a batch of a changelog topic. Raises ChangelogError for a record that is none."""
    if topic_rows is None and batch.headers is None and not stamped:
        # Most entries are like this, and a restore has millions.
        entries = zip(batch.keys, batch.values, strict=True)
        return ((key, None if value is None else PLAIN + value) for key, value in entries if key is not None)
    rows = _decode_records(batch, stamped)
    if topic_rows is None:
        return ((key, data) for key, data, _ in rows)
    return (topic_rows.row_of(key, data, timestamp) for key, data, timestamp in rows)


def _decode_records(batch: RecordBatch, stamped: bool) -> Iterator[tuple[bytes, bytes | None, int]]:
    headers = batch.headers if batch.headers is not None else [()] * len(batch.keys)
    for key, value, timestamp, extra in zip(batch.keys, batch.values, batch.timestamps, headers, strict=True):
        if key is None:
            continue
        if value is None:
            yield key, None, timestamp
        elif not extra and not stamped:
            yield key, PLAIN + value, timestamp
        else:
            at: int | None = timestamp if stamped else None
            expiry: int | None = None
            by_wall_clock = False
            kept: list[tuple[str, bytes | None]] = []
            for name, content in extra:
                if name in _OURS and content is not None and len(content) != _LONG.size:
                    raise ChangelogError(
                        f"changelog topic {batch.topic!r}, partition {batch.partition}: the entry of key {key!r} has a "
                        f"header {name!r} that no penstock wrote, or that was damaged. Only the application may write "
                        "there; `penstock reset` starts it afresh"
                    )
                if name == _KIND:
                    at = None if content is None else _LONG.unpack(content)[0]
                elif name in _OURS and content is not None:
                    expiry, by_wall_clock = _LONG.unpack(content)[0], name == _WALL_CLOCK_EXPIRY
                else:
                    kept.append((name, content))
            yield key, wrap(value, at, tuple(kept), expiry, by_wall_clock), timestamp


_log = logging.getLogger("penstock.changelog")

_FETCHED_BYTES = 4 * 1024 * 1024
_PATIENCE_SECONDS = 120.0
_PROGRESS_SECONDS = 5.0
_TRUSTED_SECONDS = 12 * 3600
"""A copy whose version was the last one longer ago is rebuilt instead of caught up: tombstones may be deleted already
(`delete.retention.ms`, a day)."""


CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "86400000",
    # Entries keep their own timestamps; by default a broker refuses one that is an hour ahead.
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.type": "CreateTime",
}
"""The settings that changelog topics are created with."""


class TopicChangelog(LogChangelog):
    """One partition, that of the task's number, of one compacted topic for each store.

    A record is an entry: the key and the value as the store's serdes write them, without penstock's envelope; None is a
    tombstone. Its timestamp is the entry's, or the time of the commit where entries have none. `stores` are the task's
    logged stores. A version's name ends in each partition's end offset before its delta, so that a copy at any version
    can be caught up by reading on from there.
    """

    topic_of = staticmethod(changelog_topic)
    topic_config = CONFIG

    def __init__(self, location: str, application_id: str, task_id: str, *, log: Log, stores: Layout) -> None:
        self._log = log
        self._application_id = application_id
        self._where = f"application {application_id!r}, task {task_id}"
        number = int(task_id.rpartition("_")[2])
        self._stores = {store: kept.timestamped for store, kept in sorted(stores.items())}
        self._rows = {store: rows_of(kept) for store, kept in stores.items()}
        # A dropped store and a later one of its name share a topic name; the generation tells their versions apart.
        generations = [
            f"{store}#{kept.generation}" if kept.generation else store for store, kept in sorted(stores.items())
        ]
        self._stores_hash = f"{crc32(' '.join(generations).encode()):08x}"
        self._partitions = {
            store: TopicPartition(changelog_topic(application_id, store), number) for store in self._stores
        }
        self._end_offsets: dict[str, int] | None = None

    # ------------------------------------------------------------------ writing

    def version_suffix(self, previous: str | None) -> str:
        """Return the end of the next version's name: incarnation, stores, time, end offsets."""
        if self._end_offsets is None:
            self._end_offsets = self._first_end_offsets(previous)
        incarnation = self.world.token(4) if previous is None else _VersionName.of(previous, self._where).incarnation
        offsets = "_".join(map(str, self._end_offsets.values()))
        return f"-{incarnation}-{self._stores_hash}-{self._now_ms() // 1000:x}-{offsets}"

    def records(self, changes: Changes) -> list[OutputBatch]:
        batches = []
        for store, rows in changes.items():
            if not rows:
                continue  # and no marker
            partition = self._partitions[store]
            batches.append(encode(rows, partition, self._stores[store], self._now_ms(), self._rows[store]))
            if self._end_offsets is not None:
                # A failed commit takes offsets, too; after it the task is opened again, and reads them from the log.
                self._end_offsets[store] += len(rows) + self._log.commit_markers
        return batches

    def begin(self, stores: Collection[str], entries: Iterable[tuple[str, bytes, bytes]]) -> list[OutputBatch]:
        """Return records that make the topics of `stores` equal to `entries`, with tombstones for other keys."""
        removed: dict[str, dict[bytes, bytes | None]] = {store: {} for store in sorted(stores)}
        kept: dict[str, list[tuple[bytes, bytes | None]]] = {store: [] for store in removed}
        ends, starts = self._settled_ends(), self._starts()
        for store, rows in removed.items():
            for found in self._read(store, starts[store], ends[store]):
                rows.update(dict.fromkeys(found))
        for store, key, value in entries:
            if store in kept:
                kept[store].append((key, value))
                removed[store].pop(key, None)
        # Entries come last: several rows may have one key in the topic, whose last record compaction keeps.
        return [*self.records({store: in_key_order(rows) for store, rows in removed.items()}), *self.records(kept)]

    def _first_end_offsets(self, previous: str | None) -> dict[str, int]:
        """Return the end offsets up to which a copy at `previous` is complete, when nothing had to be restored."""
        if previous is None:
            self._refuse_history()
            return self._ends()
        place = _VersionName.of(previous, self._where)
        if place.stores != self._stores_hash:
            # A new store: its partition is read from the beginning.
            return dict.fromkeys(self._stores, 0)
        ends = self._ends()
        self._refuse_loss(previous, place, ends)
        # Behind the fence only this task writes: every record below the ends belongs to `previous`, or was aborted.
        return ends

    def _refuse_loss(self, version: str, place: _VersionName, ends: Mapping[str, int]) -> None:
        lost = [
            f"{self._partitions[store]} ends at {ends[store]}, and version {version} began at {offset}"
            for store, offset in zip(self._stores, place.offsets, strict=False)
            if place.stores == self._stores_hash and ends[store] < offset
        ]
        if lost:
            raise ChangelogError(
                f"{self._where}: its changelog lost records: {'; '.join(lost)}. Was the topic deleted and made again? "
                "The state cannot be restored; `penstock reset` starts the application afresh"
            )

    def _refuse_history(self) -> None:
        starts = self._starts()
        used = [str(self._partitions[store]) for store, end in self._ends().items() if end > starts[store]]
        if used:
            raise ChangelogError(
                f"{self._where}: it has no commit, but its changelog {', '.join(used)} has records: its positions were "
                "deleted, or have expired (offsets.retention.minutes), or another application left these topics. They "
                "keep the newest value of each key and no positions, so it is unknown which position belongs to that "
                "state: `penstock reset` starts it afresh"
            )

    # ------------------------------------------------------------------ restoring

    def restore(self, target: str, have: str | None) -> Restore:
        """Plan to read from the end offsets of `have`, or everything. Raises ChangelogError for lost records."""
        if not self._partitions:
            return Restore(have, iter(()))
        wanted = _VersionName.of(target, self._where)
        ends = self._settled_ends()
        self._refuse_loss(target, wanted, ends)
        starts = self._starts()
        base = have if have is not None and self._can_catch_up(have, wanted) else None
        if base is not None:
            reached = dict(zip(self._stores, _VersionName.of(base, self._where).offsets, strict=True))
            starts = {store: max(start, reached[store]) for store, start in starts.items()}
        self._end_offsets = dict(ends)
        work = Work(sum(ends[store] - start for store, start in starts.items()))
        return Restore(base, self._steps(target, starts, ends, work), work)

    def _can_catch_up(self, have: str, wanted: _VersionName) -> bool:
        try:
            place = _VersionName.of(have, self._where)
        except ChangelogError:
            return False
        return (
            place.incarnation == wanted.incarnation
            and place.counter <= wanted.counter
            and place.stores == wanted.stores == self._stores_hash
            and self._age(have, place, wanted) < _TRUSTED_SECONDS
        )

    def _age(self, have: str, place: _VersionName, wanted: _VersionName) -> float:
        """Return the age in seconds of a copy's version: no tombstone after it is older."""
        now = self._now_ms() / 1000
        # The clock here may be behind the task's, as on a machine that was suspended.
        ahead = max(0.0, wanted.seconds - now)
        age = now + ahead - place.seconds
        seen = None if self.last_seen is None else self.last_seen(have)
        return age if seen is None else min(age, seen + ahead)

    def _steps(
        self, target: str, starts: Mapping[str, int], ends: Mapping[str, int], work: Work
    ) -> Iterator[tuple[Changes, str]]:
        progress = _RestoreProgress(self._where, work, self.world.seconds)
        part = 0
        for store in self._partitions:
            for rows in self._read(store, starts[store], ends[store], progress):
                if rows:
                    part += 1
                    yield {store: in_key_order(rows)}, f"{RESTORING}{target}:{part}"
        yield {}, target
        progress.end()

    def _read(
        self, store: str, at: int, end: int, progress: _RestoreProgress | None = None
    ) -> Iterator[dict[bytes, bytes | None]]:
        """Yield a store's entries from offset `at` to `end`, a fetch at a time."""
        while at < end:
            batches = self._log.fetch(self._partitions[store], at, end, _FETCHED_BYTES)
            following = batches[-1].next_offset if batches else end
            rows: dict[bytes, bytes | None] = {}
            for batch in batches:
                rows.update(decode(batch, self._stores[store], self._rows[store]))
            if progress is not None:
                progress.add(following - at, store)
            at = following
            yield rows

    def _starts(self) -> dict[str, int]:
        """Return where the history begins: a reset that was killed halfway has left positions in the topics."""
        partitions = list(self._partitions.values())
        starts = self._log.start_offsets(partitions)
        reset = self._log.committed(self._application_id, partitions)
        return {store: max(starts[each], reset[each] or 0) for store, each in self._partitions.items()}

    def _settled_ends(self) -> dict[str, int]:
        """Return the ends, once they are stable: the last commit's control records may not be written yet."""
        deadline = self.world.seconds() + _PATIENCE_SECONDS
        while True:
            ends, stable = self._ends(), self._ends(stable=True)
            if ends == stable:
                return ends
            if self.world.seconds() > deadline:
                raise ChangelogError(
                    f"{self._where}: its changelog cannot be read to the end: an open transaction of another program "
                    "holds back "
                    f"{', '.join(str(self._partitions[store]) for store in ends if stable[store] < ends[store])}"
                )
            self.world.sleep(0.01)

    def _ends(self, *, stable: bool = False) -> dict[str, int]:
        ends = self._log.end_offsets(list(self._partitions.values()), stable=stable)
        return {store: ends[partition] for store, partition in self._partitions.items()}

    def _now_ms(self) -> int:
        return self.world.clock.now_ms()

    def close(self) -> None:
        """Do nothing: the log is closed by its owner."""


@dataclass(frozen=True)
class _VersionName:
    """The parts of a version's name."""

    counter: int
    incarnation: str
    stores: str
    seconds: int
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, version: str, where: str) -> _VersionName:
        try:
            counter, _, incarnation, stores, seconds, ends = version.split("-")
            numbers = tuple(map(int, ends.split("_"))) if ends else ()
            return cls(int(counter), incarnation, stores, int(seconds, 16), numbers)
        except ValueError:
            raise ChangelogError(
                f"{where}: state version {version} was not written with the 'topic' changelog: the application ran "
                "with another one before. Go back to that, or reset the application (`penstock reset`)"
            ) from None


class _RestoreProgress:
    """Logs the progress of a restore every few seconds."""

    def __init__(self, where: str, work: Work, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._where = where
        self._work = work
        self._began = seconds()
        self._next = self._began + _PROGRESS_SECONDS
        self._has_logged = False

    def add(self, count: int, store: str) -> None:
        self._work.done += count
        now = self._seconds()
        if now >= self._next:
            self._next = now + _PROGRESS_SECONDS
            self._has_logged = True
            work = self._work
            _log.warning(
                "%s: restoring from the changelog, store %r: %d of %d records (%.0f%%), %.0f/s",
                self._where, store, work.done, work.total, 100 * work.done / max(1, work.total),
                work.done / (now - self._began),
            )  # fmt: skip

    def end(self) -> None:
        write = _log.warning if self._has_logged else _log.info
        write("%s: restored %d records in %.1f s", self._where, self._work.done, self._seconds() - self._began)
