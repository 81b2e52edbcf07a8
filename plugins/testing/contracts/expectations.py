"""What contract suites expect: values, random histories, free descriptors, and files that outlive a machine's crash."""

from __future__ import annotations

import ctypes
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from penstock.store import Changes

_LONGEST = 200


class _UndeclaredError(AssertionError, AttributeError):
    """A suite lacks an attribute."""


class Declared:
    """An attribute that each suite has to set; until then, reading it raises an error that says so."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, suite: object, kind: type) -> Any:
        contracts = [each.__name__ for each in kind.__mro__[1:] if each.__name__.endswith("Contract")]
        raise _UndeclaredError(
            f"{kind.__name__}: a {next(iter(contracts), 'contract')} without `{self._name}`: set it in the class; it "
            f"is {self._what}"
        )


def declared(what: str) -> Any:
    """Return the default of an attribute that each suite has to set; `what` describes the attribute."""
    return Declared(what)


def expect(found: object, expected: object, rule: str = "") -> None:
    """Raise AssertionError with the rule, and where the two differ first, unless they are equal.

    Without a rule, it is the name of the calling test in words, and the line that calls this.

    >>> expect([b"a", b"b"], [b"a"], "a scan yields each key once")
    Traceback (most recent call last):
        ...
    AssertionError: a scan yields each key once: 2 entries instead of 1; entry 1 is b'b', expected nothing
    """
    if found != expected:
        raise AssertionError(f"{rule or _calling_line()}: {_difference(found, expected)}")


def check(holds: object) -> None:
    """Raise AssertionError with the name of the calling test in words, and the line, unless a condition holds."""
    if not holds:
        raise AssertionError(_calling_line())


def _calling_line() -> str:
    frame = sys._getframe(2)
    rule = frame.f_code.co_name.removeprefix("test").replace("_", " ").strip()
    return f"{rule}: {linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()}"


@contextmanager
def expect_no_error(rule: str) -> Iterator[None]:
    """Turn an error of the block into an AssertionError with the rule; an AssertionError is raised unchanged."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{rule}, and raised {error!r}") from error


def expect_no_descriptors(act: Callable[[], object], what: str) -> None:
    """Raise AssertionError if each `act` leaves more file descriptors of this process open, however often it is called.

    Other threads of the process open files as well, at some time; hence a growth counts only if it is seen three times.
    """
    for _ in range(3):
        counts = []
        for _ in range(6):
            act()
            counts.append(len(os.listdir("/proc/self/fd")))
        if counts[-1] <= max(counts[:3]):
            return
    raise AssertionError(f"{what} must free all descriptors; open after each: {counts}")


def _difference(found: Any, expected: Any) -> str:
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        found, expected = dict(enumerate(found)), dict(enumerate(expected))
    if not isinstance(found, Mapping) or not isinstance(expected, Mapping):
        return f"found {shown(found)}, expected {shown(expected)}"
    absent = object()
    places = [key for key in [*expected, *found] if found.get(key, absent) != expected.get(key, absent)]
    if not places:
        return "equal entries in another order or type"
    place = places[0]
    if place in found and place in expected and isinstance(found[place], Mapping):
        return f"in {shown(place)} {_difference(found[place], expected[place])}"
    sizes = f"{len(found)} entries instead of {len(expected)}; " if len(found) != len(expected) else ""
    one, other = (shown(each[place]) if place in each else "nothing" for each in (found, expected))
    return f"{sizes}entry {shown(place)} is {one}, expected {other}"


def shown(value: object) -> str:
    """Return the value's repr, cut short."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


State = dict[str, dict[bytes, bytes]]
"""All stores of a task, as a test's model holds them."""


def applied(state: Mapping[str, Mapping[bytes, bytes]], changes: Changes) -> State:
    """Return a state after `changes`."""
    result = {store: dict(rows) for store, rows in state.items()}
    for store, rows in changes.items():
        entries = result.setdefault(store, {})
        for key, value in rows:
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
    return result


def run_histories(machine: Callable[[], RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Run a state machine `examples` times, for up to `steps` steps each, without a time limit.

    The histories are the same in each run: what a suite finds, it finds always.
    """
    run_state_machine_as_test(
        cast(Any, machine),  # any factory, contrary to its annotation
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


_DISK = Path("/var/tmp")

PAGE = os.sysconf("SC_PAGESIZE")
"""The bytes of a page."""
_CACHESTAT = 451
"""The number of the system call, which is the same on all machines."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cached(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recent"))


@contextmanager
def on_disk(directory: Path) -> Iterator[Path]:
    """Return an empty directory of whose files the system says what is on disk: below `directory` or elsewhere.

    A test's own directory is often in memory. The other one is below /var/tmp, and is deleted afterwards. Skips the
    test where neither is on a disk.
    """
    place = next((each for each in (directory, _DISK) if os.access(each, os.W_OK) and _says(each)), None)
    if place is None:
        pytest.skip(
            f"the system does not say what is on disk, neither in the test's directory nor in {_DISK}: that takes "
            "Linux 6.5 or later, and a file system on a disk; name a directory there: pytest --basetemp DIR"
        )
    with TemporaryDirectory(prefix="penstock-", dir=place, ignore_cleanup_errors=True) as empty:
        yield Path(empty)


def _says(directory: Path) -> bool:
    with TemporaryDirectory(dir=directory) as probing:
        probe = Path(probing) / "probe"
        probe.write_bytes(os.urandom(10_000))
        return bool(_unsynced_pages(probe))


def expect_durable(directory: Path, rule: str) -> None:
    """Fail with the rule if of 1 MiB that was just written to files of an `on_disk` half is in memory alone."""
    unsynced = sum(map(_unsynced_pages, filter(Path.is_file, directory.rglob("*")))) * PAGE
    assert unsynced < 1 << 19, (
        f"{rule}: of 1 MiB, {unsynced:,} bytes were only in the system's memory, which a crash of the machine loses; "
        "sync the files (os.fsync)"
    )


def dirty_pages(path: Path) -> set[int]:
    """Return the numbers of the pages of a file in an `on_disk` that are in memory alone."""
    pages = range(-(-path.stat().st_size // PAGE))
    return {page for page in pages if _unsynced_pages(path, page)} if _unsynced_pages(path) else set()


def _unsynced_pages(path: Path, page: int | None = None) -> int:
    """Return the number of unsynced pages of a file, or whether one page of it is unsynced."""
    if sys.platform != "linux":
        return 0
    part = _Range(0, 0) if page is None else _Range(page * PAGE, PAGE)
    file = os.open(path, os.O_RDONLY)
    try:
        found = _Cached()
        system = ctypes.CDLL(None, use_errno=True)
        failed = system.syscall(_CACHESTAT, file, ctypes.byref(part), ctypes.byref(found), 0)
        return 0 if failed else int(found.dirty + found.writeback)
    finally:
        os.close(file)


_SINGLE, _PARTS = 6, 6
"""Number of images with a single unsynced page, and with about half of them."""


class CrashImages:
    """Follows the files below `on_disk`, and makes images of them after a crash: unsynced pages may be lost."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._random = Random(1)
        self._on_disk: dict[Path, tuple[int, bytes]] = {}
        """The number of each file, and its content on disk."""
        self._now: dict[Path, tuple[bytes, list[int]]] = {}
        """The content of each file as programs see it, and its pages that are in memory alone."""

    def look(self) -> None:
        """Record the synced state. Call it often: a page that is written twice in between was once on disk, or not."""
        before, self._on_disk, self._now = self._on_disk, {}, {}
        for file in sorted(each for each in self._directory.rglob("*") if each.is_file()):
            try:
                dirty = sorted(dirty_pages(file))
                content, number = file.read_bytes(), file.stat().st_ino
            except FileNotFoundError:  # a thread of its own renamed it
                continue
            old = before.get(file, (0, b""))
            name = file.relative_to(self._directory)
            self._now[name] = content, [each for each in dirty if each * PAGE < len(content)]
            on_disk = old[1] if old[0] == number else b""
            self._on_disk[file] = number, _mixed(on_disk, content, set(range(-(-len(content) // PAGE))) - {*dirty})

    def write_images(self, directory: Path, name: str) -> Iterator[Path]:
        """Yield directories below this one, with the files of each image."""
        for number, image in enumerate(self.images()):
            place = directory / f"{name}-{number}"
            for file, content in image.items():
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                (place / file).write_bytes(content)
            yield place

    def images(self) -> Iterator[dict[Path, bytes]]:
        """Yield directories that a crash may leave: with none, one, or about half of the unsynced pages."""
        pages = [(name, page) for name, (_, dirty) in self._now.items() for page in dirty]
        if not pages:
            yield {name: content for name, (content, _) in self._now.items()}
            return
        kept: list[list[tuple[Path, int]]] = [[]]
        kept += [[each] for each in self._random.sample(pages, min(_SINGLE, len(pages)))]
        kept += [[each for each in pages if self._random.random() < 0.5] for _ in range(_PARTS)]
        for chosen in kept:
            yield {
                name: _mixed(self._on_disk[self._directory / name][1], content, {at for of, at in chosen if of == name})
                for name, (content, _) in self._now.items()
            }


def _mixed(old: bytes, new: bytes, pages: set[int]) -> bytes:
    """Return old content with some pages of the new one; it ends where the last page ends that either has."""
    end = min(len(new), max([len(old), *((page + 1) * PAGE for page in pages)]))
    mixed = bytearray(old[:end].ljust(end, b"\0"))
    for page in pages:
        mixed[page * PAGE : (page + 1) * PAGE] = new[page * PAGE : (page + 1) * PAGE]
    return bytes(mixed[:end])


class DiskWitness:
    """Notes in a `with` block what is done to files in a directory; `check` fails if that does not last.

    A file is durable when it is synced (`os.fsync`), and its name when the folder is synced in which it, or a folder
    above it, was made or renamed. What libraries do in C is not seen, and not accused.
    """

    def __init__(self, directory: Path) -> None:
        self._root = os.path.realpath(directory)
        self._there = {str(file) for file in Path(self._root).rglob("*") if file.is_file()}
        self._written: set[str] = set()
        """Files that were opened to be written, and not synced since."""
        self._names: set[str] = set()
        """Files and folders whose name is new in a folder that was not synced since."""
        self._made: set[str] = set()
        """Files that Python made or renamed here."""
        self._faults: list[str] = []

    def __enter__(self) -> DiskWitness:
        _hear()
        self._before: dict[str, Callable[..., Any]] = {}
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                self._before[name] = getattr(os, name)
                setattr(os, name, self._syncing(self._before[name]))
        self._profile = sys.getprofile()
        sys.setprofile(self._unseen)
        _witnesses.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _witnesses.remove(self)
        sys.setprofile(self._profile)
        for name, function in self._before.items():
            setattr(os, name, function)

    def check(self, rule: str) -> None:
        """Raise AssertionError with the rule for writes in a wrong order, and for writes that are not durable now."""
        faults = self._faults + self._pending()
        assert not faults, f"{rule}: {faults[0]}; a crash of the machine may lose it"

    def _pending(self) -> list[str]:
        pending = []
        for path in sorted(self._made | self._written):
            if _OF_NO_USE.search(os.path.basename(path)) or not os.path.isfile(path) or not os.path.getsize(path):
                continue
            if path in self._written:
                pending.append(f"{self._shown(path)} was written and not synced (os.fsync)")
            at = path
            while path in self._made and at.startswith(self._root + os.sep):
                if at in self._names:
                    pending.append(f"{self._shown(at)} is new in its folder, which was not synced (os.fsync)")
                at = os.path.dirname(at)
        return pending

    def _shown(self, path: str) -> str:
        return repr(os.path.relpath(path, self._root))

    def _syncing(self, sync: Callable[..., Any]) -> Callable[..., Any]:
        def synced(file: Any) -> None:
            sync(file)
            path = os.path.realpath(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
            self._written.discard(path)
            self._names = {each for each in self._names if os.path.dirname(each) != path}

        return synced

    def _unseen(self, frame: FrameType, event: str, called: Any) -> None:
        """Count files as synced if the code may have kept a reference to the system's function."""
        if event == "c_call" and called in self._before.values() and frame.f_code.co_name != "synced":
            self._written.clear()
            self._names.clear()

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record an event of Python's audit hooks."""
        if event == "open":
            path, flags = self._own(arguments[0]), arguments[2]
            if path is None or not flags & (os.O_WRONLY | os.O_RDWR):
                return
            if flags & os.O_CREAT and not os.path.lexists(path):
                self._add(path)
            if not flags & os.O_DSYNC:
                self._written.add(path)
        elif event == "os.mkdir":
            if (path := self._own(arguments[0])) is not None:
                self._names.add(path)
        elif event in ("os.rename", "os.link"):
            source, path = self._own(arguments[0]), self._own(arguments[1])
            if path is None:
                return
            if source in self._written:
                if os.path.getsize(source or ""):
                    self._faults.append(f"{self._shown(path)} got its name before its content was synced (os.fsync)")
                self._written.add(path)
            if event == "os.rename" and source is not None:
                for names in (self._written, self._names, self._made):
                    names.discard(source)
            self._add(path)
        elif event == "os.remove":
            path = self._own(arguments[0])
            if path in self._there and (pending := [each for each in self._pending() if self._shown(path) not in each]):
                self._faults.append(f"{self._shown(path)} was removed when {pending[0]}")

    def _add(self, path: str) -> None:
        self._names.add(path)
        self._made.add(path)

    def _own(self, path: Any) -> str | None:
        """Return the full path of a file in the directory, None for another one."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        name = os.fsdecode(path)
        folder, last = os.path.split(os.path.abspath(name))
        full = os.path.join(os.path.realpath(folder), last)
        return full if full.startswith(self._root + os.sep) else None


_OF_NO_USE = re.compile("lock|pid", re.IGNORECASE)
"""In the names of files that nobody needs after a crash."""
_witnesses: list[DiskWitness] = []


@cache
def _hear() -> None:
    """Install the hook, once: Python removes none."""
    sys.addaudithook(_tell)


def _tell(event: str, arguments: tuple[Any, ...]) -> None:
    if _witnesses and event in _EVENTS:
        for witness in _witnesses:
            witness.hear(event, arguments)


_EVENTS = {"open", "os.mkdir", "os.rename", "os.link", "os.remove"}
