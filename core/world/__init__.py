"""World: time, threads, waiting and random names of the engine; and the files of changelogs."""

from .calls import Calls
from .files import Files, LocalFiles, StoredFile, WrittenFile
from .world import ThreadTicker, Ticker, Wait, World

__all__ = [
    "Calls",
    "Files",
    "LocalFiles",
    "StoredFile",
    "ThreadTicker",
    "Ticker",
    "Wait",
    "World",
    "WrittenFile",
]
