"""The files of a changelog: deltas and snapshots as checksummed frames, written and read in bounded memory.

A snapshot is one file; several deltas may follow each other in one. Each is a 10-byte opening (`PENSTOCK`, the format's
version, `D` for a delta or `S` for a snapshot) and frames. A frame is its kind (1 byte), the length of its payload
(4 bytes), a CRC-32 (4 bytes) and the payload; numbers are big-endian. The CRC-32 covers kind, length and payload and
continues from that of the frame before, so that a missing, doubled or moved frame is noticed as well as a changed one.

| kind | payload |
|---|---|
| `H` | first frame: a MessagePack map of `version`, `previous` (nil for none and in snapshots) and `commit` |
| `C` | MessagePack of [store, [[key, value], ...]] in key order; a value of nil deletes the key |
| `Z` | as `C`, compressed with zlib |
| `E` | last frame: how many frames came before it (4 bytes) and how many changes they hold (8 bytes) |

`commit` is what `DeltaChangelog.append` or `snapshot` was given: [version, [[topic, partition, position], ...], engine
state], or nil. Older files do not have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, BinaryIO, NamedTuple
from zlib import compress as _compress
from zlib import crc32
from zlib import decompress as _decompress

from msgpack import Packer, unpackb

from penstock import Commit, TopicPartition
from penstock.store import Change, Changes

FORMAT = 1
DELTA, SNAPSHOT = b"D", b"S"

_MAGIC = b"PENSTOCK"
_OPENING = Struct(">8sBc")
_FRAME = Struct(">cII")
_COVERED = Struct(">cI")
_END = Struct(">IQ")
_ROWS = 65_536
_PIECE = 16 * 1024 * 1024

OPENING_BYTES = _OPENING.size
TAIL_BYTES = _FRAME.size + _END.size
"""How many bytes at the end of a file `check_tail` looks at."""


class DamagedError(Exception):
    """A file is damaged; the message says how."""


class Chunk(NamedTuple):
    """Some changes of one store, in key order."""

    store: str
    changes: list[Change]


def write_delta(
    changes: Changes, previous: str | None, version: str, commit: Commit | None = None, *, compress: bool = False
) -> bytes:
    """Return the file of a delta."""
    chunks = (
        Chunk(store, list(rows[start : start + _ROWS]))
        for store, rows in changes.items()
        for start in range(0, len(rows), _ROWS)
    )
    return b"".join(_write(DELTA, version, previous, commit, chunks, compress))


def write_snapshot(
    version: str,
    entries: Iterable[tuple[str, bytes, bytes]],
    commit: Commit | None = None,
    *,
    chunk_bytes: int,
    compress: bool = False,
) -> Iterator[bytes]:
    """Yield the parts of a snapshot's file, about `chunk_bytes` in memory at a time."""
    return _write(SNAPSHOT, version, None, commit, _chunks(entries, chunk_bytes), compress)


def _chunks(entries: Iterable[tuple[str, bytes, bytes]], chunk_bytes: int) -> Iterator[Chunk]:
    current: str | None = None
    rows: list[Change] = []
    size = 0
    for store, key, value in entries:
        if store != current or size >= chunk_bytes:
            if current is not None and rows:
                yield Chunk(current, rows)
            current, rows, size = store, [], 0
        rows.append((key, value))
        size += len(key) + len(value) + 16
    if current is not None and rows:
        yield Chunk(current, rows)


def _write(
    kind: bytes, version: str, previous: str | None, commit: Commit | None, chunks: Iterable[Chunk], compress: bool
) -> Iterator[bytes]:
    pack = Packer().pack
    opening = _OPENING.pack(_MAGIC, FORMAT, kind)
    running = crc32(opening)
    frames = changes = 0

    def frame(of: bytes, payload: bytes) -> bytes:
        nonlocal running, frames
        running = crc32(payload, crc32(_COVERED.pack(of, len(payload)), running))
        frames += 1
        return _FRAME.pack(of, len(payload), running) + payload

    yield opening + frame(b"H", pack({"version": version, "previous": previous, "commit": _packed(commit)}))
    for chunk in chunks:
        changes += len(chunk.changes)
        payload = pack(chunk)
        yield frame(b"Z", _compress(payload, 1)) if compress else frame(b"C", payload)
    yield frame(b"E", _END.pack(frames, changes))


def _packed(commit: Commit | None) -> list[object] | None:
    if commit is None:
        return None
    positions = [[each.topic, each.partition, position] for each, position in commit.positions.items()]
    return [commit.version, positions, commit.engine_state]


def _unpacked(packed: list[Any] | None) -> Commit | None:
    if packed is None:
        return None
    version, positions, engine_state = packed
    return Commit({TopicPartition(topic, number): at for topic, number, at in positions}, version, engine_state)


class Reader:
    """Reads one delta or snapshot; every method raises DamagedError for damage.

    `version` and `previous` are those of its header. `size` is how many bytes were read.
    """

    def __init__(self, file: BinaryIO, kind: bytes, opening: bytes | None = None) -> None:
        """Read the header; `opening`: the first OPENING_BYTES, if they were read already."""
        self._file = file
        opening = file.read(_OPENING.size) if opening is None else opening
        self.size = len(opening)
        if self.size != _OPENING.size:
            raise DamagedError(f"it is cut off: an opening of {_OPENING.size} bytes has only {self.size}")
        magic, format_version, found = _OPENING.unpack(opening)
        if magic != _MAGIC:
            raise DamagedError(f"it does not start as a changelog file does (found {opening!r})")
        if format_version != FORMAT:
            raise DamagedError(f"it has format {format_version} and this penstock reads {FORMAT}: install a newer one")
        self._running = crc32(opening)
        self._frames = self._changes = 0
        if found != kind:
            raise DamagedError(f"its first bytes say that it is of kind {found!r}, not {kind!r}")
        of, payload = self._frame()
        if of != b"H":
            raise DamagedError(f"it begins with a frame of kind {of!r}, not with a header")
        self._header = unpackb(payload)
        self.version: str = self._header["version"]
        self.previous: str | None = self._header["previous"]

    @property
    def commit(self) -> Commit | None:
        """The commit stored with it; None if there is none."""
        return _unpacked(self._header.get("commit"))

    def expect(self, version: str, previous: str | None) -> None:
        """Check that the file has the delta or snapshot of this version, with this predecessor."""
        if (self.version, self.previous) != (version, previous):
            raise DamagedError(f"its header is that of another file: {self._header}")

    def skip(self) -> None:
        """Read to its end without decoding, but check everything."""
        of = b""
        while of != b"E":
            of, _ = self._frame()

    def end(self) -> None:
        """Check that nothing follows it."""
        if self._file.read(1):
            raise DamagedError("something was added to it")

    def chunks(self) -> Iterator[Chunk]:
        """Yield all chunks; ends only after it turned out complete."""
        while True:
            of, payload = self._frame()
            if of == b"E":
                if _END.unpack(payload) != (self._frames - 1, self._changes):
                    raise DamagedError("parts of it are missing")
                return
            if of == b"Z":
                payload = _decompress(payload)
            elif of != b"C":
                raise DamagedError(f"it holds a frame of the unknown kind {of!r}")
            # Rows as tuples straight from the C unpacker: half the cost of columns that Python has to zip.
            store, rows = unpackb(payload, use_list=False)
            self._changes += len(rows)
            yield Chunk(store, list(rows))

    def _frame(self) -> tuple[bytes, bytes]:
        of, length, checksum = _FRAME.unpack(self._take(_FRAME.size, "frame"))
        payload = self._take(length, "frame")
        running = crc32(payload, crc32(_COVERED.pack(of, length), self._running))
        if running != checksum:
            raise DamagedError(f"the checksum of frame {self._frames} does not match what it holds")
        self._running = running
        self._frames += 1
        return of, payload

    def _take(self, length: int, what: str) -> bytes:
        # A damaged length must not ask for gigabytes of memory before the end of the file is found.
        data = self._file.read(min(length, _PIECE))
        if length > _PIECE == len(data):
            pieces = [data]
            while len(pieces[-1]) and (left := length - sum(map(len, pieces))):
                pieces.append(self._file.read(min(left, _PIECE)))
            data = b"".join(pieces)
        if len(data) != length:
            raise DamagedError(f"it is cut off: a {what} of {length} bytes has only {len(data)}")
        self.size += length
        return data


def check_tail(tail: bytes) -> None:
    """Raise DamagedError unless `tail`, the last TAIL_BYTES of a file, is the last frame of a complete one."""
    if len(tail) != TAIL_BYTES or tail[:5] != _COVERED.pack(b"E", _END.size):
        raise DamagedError("it is cut off: its last frame is missing")
