"""The `lmdb` store backend: state in memory-mapped files, which any process of this host may read."""

from .backend import LmdbBackend

__all__ = ["LmdbBackend"]
