"""Log lines of task hosts, with task and node: by a file to the driver, or in a batch's reports, or on stderr."""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from penstock import Processor, ValueTransformer

_MOST_LINES = 200
_FILE, _BEFORE = "host-log", "host-log.before"
_MOST_BYTES = 4 * 1024 * 1024
"""Bytes after which hosts begin a new file. One older file is kept, so up to twice this is on disk."""


class OwnLogLines:
    """Stands for the handler where the tasks run in the driver's process: its loggers have the lines already."""

    @property
    def task(self) -> str:
        """The task that this thread works for."""
        return getattr(_own, "task", "")

    @task.setter
    def task(self, task: str) -> None:
        _own.task = task

    def take(self) -> list[dict[str, Any]]:
        """Return nothing."""
        return []


_own = threading.local()


def with_place(record: logging.LogRecord) -> logging.LogRecord:
    """Return a log record of a processor in this process as `forward` makes those of hosts: with task and node."""
    task, node = getattr(_own, "task", ""), running_node(sys._getframe())
    if hasattr(record, "said") or not (task or node):
        return record
    placed, said = copy.copy(record), record.getMessage()
    placed.msg, placed.args = _placed(said, task, node), ()
    placed.task, placed.node, placed.said = task, node, said
    return placed


class _StandardErrorLines(logging.StreamHandler[TextIO]):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(with_place(record))


@contextmanager
def log_to_stderr(level: int) -> Iterator[OwnLogLines]:
    """Write this process's log records of `level` or higher to standard error in the block, which sets the task."""
    root, handler = logging.getLogger(), _StandardErrorLines()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    own = OwnLogLines()
    try:
        yield own
    finally:
        own.task = ""
        root.setLevel(before)
        root.removeHandler(handler)


def level_here() -> int:
    """Return the level from which this process logs, for the hosts of a query."""
    return min(logging.getLogger().getEffectiveLevel(), logging.getLogger("penstock").getEffectiveLevel())


_handlers: list[HostLogHandler] = []
"""The handler of this process, once it sends its lines to a driver."""


def log_to_driver(directory: Path, level: int) -> HostLogHandler:
    """Send what this process logs from `level` on to the driver whose directory that is; return the handler.

    A process of Spark's works for one query after the other: the last call counts.
    """
    root = logging.getLogger()
    if not _handlers:
        _handlers.append(HostLogHandler(directory))
    if _handlers[0] not in root.handlers:
        root.addHandler(_handlers[0])
    _handlers[0].directory = directory if directory.is_dir() else None
    root.setLevel(level)
    return _handlers[0]


class HostLogHandler(logging.Handler):
    """Sends log records of this process to the driver, with their task and node.

    `directory` is the runner's. If it is not on this machine, `take` returns the lines for a report.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory if directory.is_dir() else None
        self.task = ""
        self._kept: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record; never raises."""
        try:
            line = {
                "logger": record.name,
                "level": record.levelno,
                "message": record.getMessage(),
                "created": record.created,
                "task": self.task,
                "node": running_node(sys._getframe()),
                "trace": "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else "",
            }
            if self.directory is None or not self._append(line):
                self._keep(line)
        except Exception:
            self.handleError(record)

    def take(self) -> list[dict[str, Any]]:
        """Return the stored lines, once."""
        kept, self._kept = self._kept, []
        return kept

    def _append(self, line: dict[str, Any]) -> bool:
        assert self.directory is not None
        data = (json.dumps(line) + "\n").encode()
        try:
            # A single write to a file opened for appending is not mixed with other processes' lines.
            file = os.open(self.directory / _FILE, os.O_WRONLY | os.O_APPEND)
        except OSError:
            return False
        try:
            return os.write(file, data) == len(data)
        except OSError:
            return False  # the disk is full
        finally:
            os.close(file)

    def _keep(self, line: dict[str, Any]) -> None:
        if len(self._kept) < _MOST_LINES:
            self._kept.append(line)


class HostLogReader:
    """The driver's end: passes the lines to this process's loggers, so that their levels and handlers apply.

    The file is bounded: when it has `most_bytes`, it becomes the one before, and hosts write to a new one.
    """

    def __init__(self, directory: Path, most_bytes: int = _MOST_BYTES) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        self._files = [_Tail(directory / _FILE)]

    def forward(self) -> None:
        """Pass on the lines written since the last call."""
        # A host that has opened the file before may still write to it: read it until the next one takes its place.
        for file in self._files:
            file.forward()
        if self._files[-1].size >= self._most_bytes:
            for old in self._files[:-1]:
                old.close()
            try:
                os.replace(self._directory / _FILE, self._directory / _BEFORE)
            except FileNotFoundError:  # something cleans temporary files; until now, reports had the lines
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files = [self._files[-1], _Tail(self._directory / _FILE)]

    def close(self) -> None:
        """Pass on the remaining lines, and close; idempotent."""
        for file in self._files:
            file.forward()
            file.close()
        self._files = []


class _Tail:
    """A file that grows, and its lines; made if it is not there."""

    def __init__(self, path: Path) -> None:
        path.touch(0o600)
        self._file = path.open("rb")
        self._rest = b""
        self.size = 0

    def forward(self) -> None:
        new = self._file.read()
        self.size += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            try:
                data = json.loads(line)
            except ValueError:
                continue  # a host was killed while it wrote
            forward(data)

    def close(self) -> None:
        self._file.close()


def forward(line: dict[str, Any]) -> None:
    """Pass one host's line to the logger of the same name.

    The record's message names the task and the node. `task`, `node` and `said`, the message without them, are
    attributes of the record, for formats that have places of their own for these.
    """
    logger = logging.getLogger(line["logger"])
    if not logger.isEnabledFor(line["level"]):
        return
    message = line["message"]
    text = _placed(message, line["task"], line["node"])
    record = logger.makeRecord(line["logger"], line["level"], "host", 0, text, (), None)
    record.created = line["created"]
    record.exc_text = line["trace"].rstrip("\n") or None
    record.task, record.node, record.said = line["task"], line["node"], message
    logger.handle(record)


def _placed(message: str, task: str, node: str) -> str:
    where = []
    if task and f"task {task}" not in message:
        where.append(f"task {task}")
    if node and f"node {node!r}" not in message:
        where.append(f"node {node!r}")
    return (f"{', '.join(where)}: " if where else "") + message


def running_node(frame: FrameType | None) -> str:
    """Return the node whose processor runs, from the stack of `frame`, so records need not note it; "" if none."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, (Processor, ValueTransformer)):
            node = getattr(getattr(owner, "context", None), "node", "")
            return node if isinstance(node, str) else ""
        frame = frame.f_back
    return ""
