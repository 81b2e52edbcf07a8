"""Programs in processes of their own, and tasks in this one, that end with the block that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

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


class Child(subprocess.Popen[str]):
    """A Python program in a process group of its own, which is killed at the end of a `with` block."""

    def __init__(self, *arguments: object, **options: Any) -> None:
        """Run `python ARGUMENTS`; `options` are those of Popen."""
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        given = {"cwd": ROOT, "env": environment, "text": True, "start_new_session": True, **pipes, **options}
        super().__init__([sys.executable, *map(str, arguments)], **given)

    def line(self) -> str:
        """Wait for the next line that it prints."""
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def tell(self, text: str) -> None:
        """Send it text."""
        assert self.stdin is not None
        self.stdin.write(text)
        self.stdin.flush()

    def end(self) -> None:
        """Kill it with its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        for stream in filter(None, (self.stdin, self.stdout, self.stderr)):
            with suppress(BrokenPipeError):
                stream.close()

    def __exit__(self, *error: object) -> None:
        self.end()


def python(module: str, *arguments: str | Path) -> Child:
    """Run `python -m MODULE ARGUMENTS`, whose errors are read, too."""
    return Child("-m", module, *arguments, stderr=subprocess.PIPE)


def fork() -> int:
    """Fork; Python 3.12 and later warn when the test runner has threads, which the children here do not need."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def succeeds_in_a_fork(act: Callable[[], object]) -> bool:
    """Run `act` in a forked process; return whether it raises nothing, and does not return False."""
    child = fork()
    if child == 0:
        code = 2
        try:
            code = int(act() is False)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
