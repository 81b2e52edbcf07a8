"""Tables in directories of this host: what deltalake leaves to its caller there, such as fsync."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from urllib.parse import unquote, urlsplit

LOG = "_delta_log"


def local_path(uri: str) -> str | None:
    """Return the absolute path of a table in a directory, or None for a URL of another store."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        return None
    return os.path.abspath(unquote(parts.path) if parts.scheme else os.path.expanduser(uri))


def sync_commit(directory: str, version: int) -> None:
    """Make a commit durable: its data files, the file of the log, and their directories. deltalake does not."""
    commit = os.path.join(directory, LOG, f"{version:020}.json")
    with suppress(FileNotFoundError):  # cleaned up, as it is older than a checkpoint
        with open(commit, encoding="utf-8") as file:
            actions = [json.loads(line) for line in file]
        files = [os.path.join(directory, unquote(each["add"]["path"])) for each in actions if "add" in each]
        folders = {directory, os.path.dirname(commit)}
        for path in files:
            _sync(path)
            folder = os.path.dirname(path)
            while len(folder) > len(directory):
                folders.add(folder)
                folder = os.path.dirname(folder)
        _sync(commit)
        for each in folders:
            _sync(each)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
