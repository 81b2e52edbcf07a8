"""A store in another process, whose strings and objects have other hashes than here."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from penstock.stores.memory import MemoryBackend

from .other_process import run_elsewhere
from .store_under_test import StoreUnderTest


def rows_elsewhere(spec: Any, histories: Sequence[Sequence[Any]], seed: str) -> list[dict[bytes, bytes]]:
    """Return the rows after each history, made in a process whose hashes begin with `seed`."""
    found: list[dict[bytes, bytes]] = run_elsewhere(_rows, (spec, histories), seed, "a store")
    return found


def _rows(cargo: Any) -> list[dict[bytes, bytes]]:
    spec, histories = cargo
    found = []
    for history in histories:
        with tempfile.TemporaryDirectory() as directory:
            store = StoreUnderTest(spec, MemoryBackend, directory)
            for store.now, (method, *given) in enumerate(history):
                try:
                    store.call(method, *given)
                except Exception:
                    pass
            store.commit()
            found.append(store.rows())
            store.close()
    return found
