"""The local log: topics, positions and commits of one host in an LMDB environment, shared by any number of processes."""

from .log import LocalLog

__all__ = ["LocalLog"]
