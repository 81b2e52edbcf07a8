"""The contract of a store backend, on ours."""

from penstock_acme.sqlite import SqliteBackend

from penstock.plugins.testing.contracts.store_backend import StoreBackendContract
from penstock.plugins.testing.contracts.store_kinds import StoreKindsContract


class TestSqliteBackend(StoreBackendContract):
    open = staticmethod(SqliteBackend)
    examples = 5


class TestKindsOverSqlite(StoreKindsContract):
    open = staticmethod(SqliteBackend)
    examples = 3
