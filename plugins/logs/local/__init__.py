"""The local log: topics, positions and commits in an LMDB environment, shared by the processes of one host."""

from .log import LocalLog

__all__ = ["LocalLog"]
