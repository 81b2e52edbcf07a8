"""A store backend on RocksDB, Kafka Streams' default; imports the public door only."""

from collections.abc import Mapping

from penstock import hookimpl


@hookimpl
def penstock_store_backends() -> Mapping[str, str]:
    """Name the store backend."""
    return {"contrib.rocksdb": "penstock.contrib.rocksdb.backend:RocksDbBackend"}
