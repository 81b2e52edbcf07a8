"""Speed, size on disk and memory of the installed store backends on this machine, each in a fresh process."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

from penstock import MissingPackageError, PluginError, StoreBackend, StoreBackendFactory
from penstock.hooks import registry
from penstock.store import Change

KIND = "store backend"
COMMIT = 10_000
"""Changes in a commit, and entries in a step of a restore."""
_COMMITS = 10
_GETS = 100_000
_STORE = "entries"
_SEED = 1


@dataclass(frozen=True)
class Speed:
    """The figures of one backend; `error` says why it could not be measured, and then the figures are 0.

    Rates are entries in a second: of `get` of random keys, of commits that put random keys, of a scan of all, and of a
    restore, which writes all in the order of their keys. `commit_ms` is for one commit. `memory_bytes` is how much the
    process's anonymous memory has grown (None where the system does not tell), without files that are mapped.
    `is_installed`: False for a backend that needs a package which is not installed.
    """

    backend: str
    get: float = 0
    put: float = 0
    commit_ms: float = 0
    range: float = 0
    restore: float = 0
    disk_bytes: int = 0
    memory_bytes: int | None = None
    error: str | None = None
    is_installed: bool = True


def measure_backends(
    names: Sequence[str] = (), *, entries: int = 200_000, value_bytes: int = 100, directory: Path | None = None
) -> Iterator[Speed]:
    """Yield the speed of each of the backends `names`, or of all that are installed, in a new directory each.

    Values are random bytes, which cannot be compressed. `directory`: where to write (None: the system's temporary
    directory). Raises PluginError for a name that is not installed, and MissingPackageError for a backend that needs a
    package which is not installed; without `names` that backend is yielded with the error.
    """
    for name in names:
        registry().load(KIND, name)
    for name in names or registry().names(KIND):
        try:
            registry().load(KIND, name)
        except MissingPackageError as error:
            yield Speed(name, error=str(error), is_installed=False)
            continue
        except PluginError:
            pass  # `measure` says what is wrong
        with (
            tempfile.TemporaryDirectory(prefix="penstock-stores-", dir=directory) as made,
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
        ):
            yield process.submit(measure, name, entries, value_bytes, Path(made)).result()


def measure(name: str, entries: int, value_bytes: int, directory: Path) -> Speed:
    """Measure one backend in this process."""
    before = anonymous_memory()
    try:
        factory: StoreBackendFactory = registry().load(KIND, name)
        backend = factory(directory, [_STORE])
    except Exception as error:
        return Speed(name, error=str(error))
    try:
        return _measure(name, backend, entries, value_bytes, directory, before)
    finally:
        backend.close()


def anonymous_memory() -> int | None:
    """Return the bytes of memory of this process that no file backs; None where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon:")), None)


def _measure(
    name: str, backend: StoreBackend, entries: int, value_bytes: int, directory: Path, before: int | None
) -> Speed:
    choice = random.Random(_SEED)

    def rows(numbers: Iterable[int]) -> list[Change]:
        return [(_key(number), choice.randbytes(value_bytes)) for number in numbers]

    version, restoring = None, 0.0
    for start in range(0, entries, COMMIT):
        restoring += _timed_write(backend, rows(range(start, min(start + COMMIT, entries))), version, f"{start}")
        version = f"{start}"
    keys = [_key(choice.randrange(entries)) for _ in range(min(_GETS, entries))]
    began = perf_counter()
    for key in keys:
        backend.get(_STORE, key)
    getting = perf_counter() - began
    began = perf_counter()
    found = sum(1 for _ in backend.range(_STORE))
    scanning = perf_counter() - began
    changed, committing = 0, 0.0
    for number in range(_COMMITS):
        changes = rows(sorted(choice.sample(range(entries), min(COMMIT, entries))))
        committing += _timed_write(backend, changes, version, f"commit-{number}")
        version, changed = f"commit-{number}", changed + len(changes)
    after = anonymous_memory()
    backend.close()
    return Speed(
        name,
        get=len(keys) / getting,
        put=changed / committing,
        commit_ms=committing / _COMMITS * 1000,
        range=found / scanning,
        restore=entries / restoring,
        disk_bytes=sum(each.stat().st_blocks * 512 for each in directory.rglob("*") if each.is_file()),
        memory_bytes=None if after is None or before is None else max(after - before, 0),
    )


def _timed_write(backend: StoreBackend, changes: Sequence[Change], previous: str | None, version: str) -> float:
    began = perf_counter()
    backend.write({_STORE: changes}, previous, version)
    return perf_counter() - began


def _key(number: int) -> bytes:
    return b"key-%012d" % number
