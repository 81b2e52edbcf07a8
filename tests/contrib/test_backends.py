"""contrib.rocksdb and contrib.sqlite keep the published contract, and what they promise beyond it."""

from __future__ import annotations

from penstock.contrib.rocksdb.backend import RocksDbBackend
from penstock.contrib.sqlite.backend import SqliteBackend
from penstock.plugins.testing.contracts.store_backend import StoreBackendContract
from penstock.plugins.testing.contracts.store_kinds import StoreKindsContract


class TestSqlite(StoreBackendContract):
    open = staticmethod(SqliteBackend)
    examples = 8


class TestKindsOverSqlite(StoreKindsContract):
    open = staticmethod(SqliteBackend)
    examples = 3


class TestRocksDb(StoreBackendContract):
    open = staticmethod(RocksDbBackend)
    examples = 8


class TestKindsOverRocksDb(StoreKindsContract):
    open = staticmethod(RocksDbBackend)
    examples = 3
