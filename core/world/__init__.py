"""World: time, threads, waiting and random names of the engine; and the files of changelogs."""

from .files import Files, LocalFiles, StoredFile, WrittenFile
from .world import ThreadTicker, Ticker, Wait, World

__all__ = [
    "Files",
    "LocalFiles",
    "StoredFile",
    "ThreadTicker",
    "Ticker",
    "Wait",
    "World",
    "WrittenFile",
]
