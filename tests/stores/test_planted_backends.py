"""The contract suite for store backends finds each of these planted bugs, by the test that names the rule."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.testing.contracts.store_backend import StoreBackendContract
from penstock.stores.memory import MemoryBackend

from . import planted_writes as writes


class GetsABytearray(MemoryBackend):
    def get(self, store: str, key: bytes) -> Any:
        value = super().get(store, key)
        return None if value is None else bytearray(value)


class YieldsBytearrays(MemoryBackend):
    def range(self, *args: Any, **options: Any) -> Any:
        for key, value in super().range(*args, **options):
            yield key, bytearray(value)


class CountsInFloats(MemoryBackend):
    def approximate_count(self, store: str) -> Any:
        return float(super().approximate_count(store))


class LeavesAFile(MemoryBackend):
    def destroy(self) -> None:
        super().destroy()
        (Path(self._directory) / "left").touch()


class LeaksADescriptor(MemoryBackend):
    def __init__(self, directory: Path, stores: Any, **options: Any) -> None:
        super().__init__(directory, stores, **options)
        LEAKED.append(os.open(directory, os.O_RDONLY))


class KnowsItsVersionAfterClose(MemoryBackend):
    def version(self) -> str | None:
        return None if self._contents is None else super().version()


class TakesNamesForTheSame(MemoryBackend):
    """Ignores the case of names."""

    def __init__(self, directory: Path, stores: Any, **options: Any) -> None:
        super().__init__(directory, list({store.lower() for store in stores}), **options)

    def get(self, store: str, key: bytes) -> Any:
        return super().get(store.lower(), key)

    def range(self, store: str, *args: Any, **options: Any) -> Any:
        return super().range(store.lower(), *args, **options)

    def approximate_count(self, store: str) -> int:
        return super().approximate_count(store.lower())

    def write(self, changes: Any, previous: str | None, version: str) -> None:
        super().write({store.lower(): rows for store, rows in changes.items()}, previous, version)


class BelongsToItsThread(MemoryBackend):
    """As objects of sqlite3 do by default."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._thread = threading.current_thread()

    def range(self, *args: Any, **options: Any) -> Any:
        assert threading.current_thread() is self._thread, "made in another thread"
        return super().range(*args, **options)


LEAKED: list[int] = []

PLANTED = [
    (GetsABytearray, "test_what_is_returned_has_its_type", "get.* must return bytes"),
    (YieldsBytearrays, "test_what_is_returned_has_its_type", "range must yield bytes"),
    (CountsInFloats, "test_what_is_returned_has_its_type", "must return an int"),
    (LeavesAFile, "test_destroying_leaves_no_files", "destroy must delete"),
    (LeaksADescriptor, "test_closing_frees_descriptors", "close must free"),
    (TakesNamesForTheSame, "test_any_name_that_a_store_may_have", "mixed up with another"),
    (BelongsToItsThread, "test_it_is_opened_and_filled_in_another_thread_than_it_is_used_in", "another thread"),
    (KnowsItsVersionAfterClose, "test_closing", "DID NOT RAISE"),
]


@pytest.mark.parametrize(("backend", "test", "rule"), PLANTED)
def test_a_planted_bug_is_found(backend: type[MemoryBackend], test: str, rule: str, tmp_path: Path) -> None:
    suite = type("Suite", (StoreBackendContract,), {"open": staticmethod(backend), "in_one_process": True})()
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception), match=rule):
            getattr(suite, test)(tmp_path)
    finally:
        while LEAKED:
            os.close(LEAKED.pop())


WRITES = [
    (writes.VersionFirst, "test_a_process_killed_inside_write", "step .* of write: at version .* in one atomic step"),
    (writes.VersionLast, "test_a_process_killed_inside_write", "step .* of write: at version .* in one atomic step"),
    (writes.RowByRow, "test_a_process_killed_inside_write", "step .* of write: at version .* in one atomic step"),
    (writes.StoreByStore, "test_a_process_killed_inside_write", "step .* of write: at version .* in one atomic step"),
    (writes.Forgetful, "test_a_process_killed_inside_write", "a process wrote, and ended: found version"),
    (writes.ReaderThatWrites, "test_a_reader_in_another_process", "must raise StoreError: written"),
    (writes.ReaderOfTheFirstCommit, "test_a_reader_in_another_process", "sees the last commit, v1"),
]


@pytest.mark.parametrize(("backend", "test", "rule"), WRITES)
def test_a_planted_bug_between_processes_is_found(backend: Any, test: str, rule: str, tmp_path: Path) -> None:
    suite = type("Suite", (StoreBackendContract,), {"open": staticmethod(backend)})()
    with pytest.raises(AssertionError, match=rule):
        getattr(suite, test)(tmp_path)


def test_a_backend_that_no_other_process_can_import_is_refused(tmp_path: Path) -> None:
    suite = type("Suite", (StoreBackendContract,), {"open": staticmethod(lambda *args: MemoryBackend(*args))})()
    with pytest.raises(AssertionError, match="cannot import what it is to run: .*not a lambda"):
        suite.test_a_process_killed_inside_write(tmp_path)
