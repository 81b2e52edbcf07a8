"""Helpers of all parts of `StoreBackendContract`: opening a backend, and reading all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import StaleStoreError, StoreBackend, StoreBackendFactory, StoreError
from penstock.store import Changes

from . import store_children
from .child import CleanChildren, children_for
from .expectations import declared, expect, shown
from .histories import applied
from .store_children import STORES

Content = Mapping[str, Mapping[bytes, bytes]]
Committed = tuple[str | None, Content]
"""The version of a backend, and its rows."""

WRONG: Changes = {"first": [(b"a", b"wrong"), (b"z", b"wrong")], "second": [(b"z", b"wrong")]}
"""Changes that must not be written."""

NOTHING: Committed = (None, {store: {} for store in STORES})
"""A new directory."""


class StoreTests:
    """The settings of `StoreBackendContract`."""

    open: StoreBackendFactory = declared("the backend's class or function, as a staticmethod")
    """The backend: its class or function, as a `staticmethod`. Other processes import it."""
    in_one_process: ClassVar[bool] = False
    """Whether the state ends with the process; tests that need a second process are then skipped."""

    def children(self) -> CleanChildren:
        """Return what starts processes that have never used the backend; skip the test where they do not see it."""
        if self.in_one_process:
            pytest.skip("this backend has no other processes")
        return children_for(module_of(type(self).open), store_children.__name__)

    def opened(self, directory: Path, stores: Sequence[str] = STORES) -> closing[StoreBackend]:
        """Open the backend for a `with` block."""
        return closing(type(self).open(directory, stores))

    def check_destroyed(self, directory: Path, after: str, stores: Sequence[str] = STORES) -> None:
        """Open and destroy: check that no file is left, in the directory or beside it."""
        type(self).open(directory, stores).destroy()
        left = sorted(str(file.relative_to(directory)) for file in directory.rglob("*") if not file.is_dir())
        assert not left, f"destroy, after {after}, must delete all files, and left {left[:9]}"


def committed(before: Committed, changes: Changes, version: str) -> Committed:
    """Return what a backend has after a write."""
    return version, applied(before[1], changes)


def check_reads(backend: StoreBackend, expected: Committed, rule: str) -> None:
    """Compare scans in both directions, some gets and the counts with what was committed."""
    version, content = expected
    expect(backend.version(), version, f"{rule}: version")
    for store, rows in content.items():
        entries = sorted(rows.items())
        expect(list(backend.range(store)), entries, f"{rule}: range of {store!r}")
        expect(list(backend.range(store, reverse=True)), entries[::-1], f"{rule}: reversed range of {store!r}")
        for key, value in entries[:: len(entries) // 50 + 1]:
            expect(backend.get(store, key), value, f"{rule}: get of {key[:40]!r} in {store!r}")
        check_count(backend, store, len(entries), rule)


def check_count(backend: StoreBackend, store: str, rows: int, rule: str) -> None:
    """Check that a count is 0 exactly where a store has no keys."""
    count = backend.approximate_count(store)
    assert type(count) is int, f"approximate_count must return an int, and returned {count!r}"
    assert (count > 0) == (rows > 0) and count >= 0, (
        f"{rule}: approximate_count is 0 only if there are no keys; of {rows} in {store!r} it says {count}"
    )


def check_refused(
    backend: StoreBackend, previous: str | None, why: str = "", changes: Changes = WRONG, version: str = "never"
) -> None:
    """Check that a write after another version than the present one raises StaleStoreError."""
    rule = "a write whose `previous` is not the version raises StaleStoreError and changes nothing"
    try:
        backend.write(changes, previous, version)
    except StaleStoreError:
        return
    except StoreError as error:
        raise AssertionError(f"{rule}; after {shown(previous)} it raised {error!r}; {why}") from error
    raise AssertionError(f"{rule}; after {shown(previous)} it raised nothing; {why}")


def module_of(opener: Any) -> str:
    """Return the module that a second process imports for a backend."""
    while isinstance(opener, partial):
        opener = opener.func
    return str(opener.__module__)
