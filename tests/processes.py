"""Programs in processes of their own, and tasks in this one, that end with the block that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from penstock import Application, Log
from penstock.plugins.engine.program.from_state import prepare_and_continue
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.world import World

ROOT = Path(__file__).parents[1]


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process is there, running or halted. One that has ended may stay on as a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@contextmanager
def python(module: str, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run `python -m MODULE ARGUMENTS` in a process group of its own, which is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


@contextmanager
def opened_workers(application: Application, log: Log) -> Iterator[list[TaskWorker]]:
    """Start all of an application's tasks as a runner would, and close them at the end. Retries do not wait."""
    with ExitStack() as stack:
        prepared = prepare_and_continue(application, log, lambda: None)
        resources = ProcessResources(World(sleep=lambda seconds: None))
        stack.callback(resources.close)
        workers = [
            TaskWorker(prepared.application, task, inputs, log, resources=resources)
            for task, inputs in prepared.assignment.tasks.items()
        ]
        for worker in workers:
            stack.callback(worker.close)
        yield workers


def let_everybody_in(directory: Path) -> None:
    """Make a directory reachable for other users, as far as it and those above it are ours."""
    for path in (directory, *directory.parents):
        status = path.stat()
        if status.st_uid == os.getuid() and status.st_mode & 0o055 != 0o055:
            path.chmod(status.st_mode | 0o055)
