"""The Python interpreter of Spark's workers: which one it is, and whether it can run the application."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import RuntimeUnavailableError
from penstock.support.packages import DISTRIBUTION
from penstock.support.system_errors import error_number, what_to_do

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_CAUSES = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class SparkFailure(Exception):
    """Spark ended the query, not a task: a lost worker or a damaged checkpoint. `stays`: a retry would fail, too."""

    def __init__(self, text: str, stays: bool = False) -> None:
        super().__init__(text)
        self.stays = stays


def explain(text: str, checkpoint: str = "its checkpoint") -> str:
    """Return the message of a Spark error, without its stack and its plan.

    A full disk, or too many open files, is the cause of other errors and is returned first.
    """
    cause = cause_in(text)
    if cause is not None:
        fix = what_to_do(cause, f"set `checkpoint_dir` (now {checkpoint}) or SPARK_LOCAL_DIRS to another directory")
        return f"{cause}; {fix}"
    traceback = re.findall(
        r"^(\w[\w.]*(?:Error|Exception|Interrupt)\b.*)$", text.partition("Traceback (most recent call last)")[2], re.M
    )
    if traceback:
        return str(traceback[-1]).strip()
    lines = [line.strip() for line in text.partition("=== Streaming Query ===")[0].splitlines()]
    kept = [line for line in lines if line and not re.match(r"(at |\.\.\. \d+ more|Driver stacktrace)", line)]
    return " ".join(kept[:3]) or "no reason given"


def cause_in(text: str) -> str | None:
    """Return the line of a Spark error about a full or unwritable disk, or about too many open files."""
    return next(
        (line.strip().removeprefix("Caused by: ") for line in text.splitlines() if error_number(line) in _CAUSES), None
    )


_CONF, _VARIABLE = "spark.pyspark.python", "PYSPARK_PYTHON"
_PROBE = (
    "import importlib.util, json, platform, sys;"
    "print(json.dumps([platform.python_version(), importlib.util.find_spec('penstock') is not None]))"
)
_PROBE_SECONDS = 60.0

_log = logging.getLogger("penstock.spark")
_checked: set[str] = set()
"""Spark applications whose executors have been asked."""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that workers run on. `host`: "" for this one."""

    command: str
    version: str
    has_penstock: bool
    host: str = ""


def chosen_command(conf: Mapping[str, str]) -> str:
    """Return the command of the workers' interpreter: as Spark chooses it, or else this process's own."""
    return conf.get(_CONF) or os.environ.get(_VARIABLE) or sys.executable


def check_command(command: str) -> Interpreter:
    """Return the interpreter that a command starts on this machine.

    Raises RuntimeUnavailableError unless it has this process's minor version of Python, and penstock.
    """
    path = shutil.which(command)
    if path is None:
        raise RuntimeUnavailableError(
            f"Spark's workers are to run on {command!r}, and there is no such command. {_FIX}"
        )
    if Path(path).absolute() == Path(sys.executable).absolute():
        return Interpreter(path, _version(), True)
    try:
        done = subprocess.run([path, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
        version, has_penstock = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        raise RuntimeUnavailableError(
            f"Spark's workers are to run on {command!r}, which is no Python interpreter that works: {said}. {_FIX}"
        ) from None
    return _check(Interpreter(path, version, has_penstock))


def check_executors(session: SparkSession) -> list[Interpreter]:
    """Return the interpreters of a cluster's executors, each once. Runs a small job; raises as `check_command`."""
    context = session.sparkContext

    # By value: a worker without penstock could not load a function of this module.
    def probe(numbers: Iterable[int]) -> Iterator[tuple[str, str, bool, str]]:
        import importlib.util
        import platform
        import sys

        yield (
            sys.executable,
            platform.python_version(),
            importlib.util.find_spec("penstock") is not None,
            platform.node(),
        )

    count = max(1, context.defaultParallelism)
    try:
        found = context.parallelize(range(count), count).mapPartitions(probe).collect()
    except Exception as error:
        raise RuntimeUnavailableError(
            f"Spark's executors cannot run this process's Python {_version()} on {context.pythonExec!r}: "
            f"{explain(str(error))}. {_FIX}"
        ) from error
    return [_check(Interpreter(*each)) for each in sorted(set(found))]


def log_interpreter(session: SparkSession, is_cluster: bool) -> None:
    """Say once for each Spark application on which interpreter its workers run; raises as `check_command`."""
    context = session.sparkContext
    if context.applicationId in _checked:
        return
    found = check_executors(session) if is_cluster else [check_command(context.pythonExec)]
    _checked.add(context.applicationId)
    for each in found:
        where = f" on {each.host}" if each.host else ""
        _log.info("workers%s run on Python %s (%s)", where, each.version, each.command)


_FIX = (
    f"Set {_VARIABLE}, or {_CONF} (--conf), to an interpreter of Python {sys.version_info[0]}.{sys.version_info[1]} "
    "with penstock and what the application imports, before the session is made"
)


def _check(found: Interpreter) -> Interpreter:
    what = f"Spark's workers run on Python {found.version} ({found.command}{f' on {found.host}' if found.host else ''})"
    if found.version.split(".")[:2] != _version().split(".")[:2]:
        raise RuntimeUnavailableError(
            f"{what}, and the driver on Python {_version()}: both need the same minor version. {_FIX}"
        )
    if not found.has_penstock:
        raise RuntimeUnavailableError(
            f"{what}, which has no package penstock: install it there (pip install {DISTRIBUTION}). {_FIX}"
        )
    return found


def _version() -> str:
    return ".".join(map(str, sys.version_info[:3]))
