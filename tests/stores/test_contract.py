"""Both of our store backends keep the published contract."""

from __future__ import annotations

from functools import partial

from penstock.plugins.testing.contracts.store_backend import StoreBackendContract
from penstock.plugins.testing.contracts.store_kinds import StoreKindsContract
from penstock.stores.lmdb import LmdbBackend
from penstock.stores.memory import MemoryBackend


class TestMemory(StoreBackendContract):
    open = staticmethod(MemoryBackend)
    in_one_process = True


class TestLmdb(StoreBackendContract):
    open = staticmethod(partial(LmdbBackend, lock_timeout="1s"))
    examples = 12  # each opens, forks and syncs many times


class TestKindsOverLmdb(StoreKindsContract):
    open = staticmethod(LmdbBackend)
    examples = 10
