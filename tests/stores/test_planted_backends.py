"""The contract suite for store backends finds each of these planted bugs, by the test that names the rule."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.testing.contracts.store_backend import StoreBackendContract
from penstock.stores.memory import MemoryBackend


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


LEAKED: list[int] = []

PLANTED = [
    (GetsABytearray, "test_what_is_returned_has_its_type", "get.* must return bytes"),
    (YieldsBytearrays, "test_what_is_returned_has_its_type", "range must yield bytes"),
    (CountsInFloats, "test_what_is_returned_has_its_type", "must return an int"),
    (LeavesAFile, "test_destroying_leaves_no_files", "destroy must delete"),
    (LeaksADescriptor, "test_closing_frees_descriptors", "close must free"),
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
