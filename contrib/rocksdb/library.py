"""The library rocksdict: RocksDB's options for a task's state, and its errors with what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import PenstockError, StoreError
from penstock.support.packages import needed
from penstock.support.system_errors import what_to_do

BACKEND = "store backend 'contrib.rocksdb'"
_BLOOM_BITS = 10
_LOG_BYTES = 1 << 20


@dataclass(frozen=True)
class Limits:
    """The limits of one open directory: bytes of memory for cached blocks and for writes, and open table files."""

    block_cache_bytes: int
    write_buffer_bytes: int
    max_open_files: int


def load() -> Any:
    """Return the library, which the extra `rocksdb` installs; imported when a directory is opened, and not before."""
    with needed(BACKEND, "rocksdb"):
        import rocksdict
    return rocksdict


def make_options(limits: Limits) -> Any:
    """Return the options of a directory and of each of its column families, which share one cache."""
    rocksdict = load()
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(limits.block_cache_bytes))
    blocks.set_bloom_filter(_BLOOM_BITS, False)
    # Outside the cache, indexes and filters would take memory in proportion to the state.
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_write_buffer_size(limits.write_buffer_bytes)
    options.set_db_write_buffer_size(limits.write_buffer_bytes)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(4 * limits.write_buffer_bytes)
    options.set_max_background_jobs(2)
    options.set_max_open_files(limits.max_open_files)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_stats_dump_period_sec(0)
    return options


def is_damage(error: Exception) -> bool:
    """Return whether RocksDB said that files are damaged or lacking."""
    # rocksdict raises plain Exceptions; their text begins with RocksDB's status.
    text = str(error)
    return text.startswith("Corruption") or (text.startswith("IO error") and "No such file" in text)


def explain(directory: str, error: Exception) -> PenstockError:
    """Return the StoreError for an error of RocksDB or of the operating system; one of penstock stays as it is."""
    if isinstance(error, PenstockError):
        return error
    if type(error).__name__ == "DbClosedError":
        return StoreError(f"store directory {directory}: used after it was closed or destroyed: open it again")
    known = None if is_damage(error) else what_to_do(error, "set state_dir to another directory", directory)
    if known is not None:
        fix = known
    elif is_damage(error):
        fix = "its files are damaged: delete them, and the state is restored from the changelog"
    else:
        fix = "if this stays, delete the directory, and the state is restored from the changelog"
    return StoreError(f"store directory {directory}: {error}; {fix}")
