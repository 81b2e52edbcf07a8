"""One broker for all processes of a test run: `python -m tests.kafka.shared_broker DIRECTORY` has it.

A broker's start costs as much as a dozen tests, and so does each of its threads that looks around while nothing
happens. The first process that needs the broker starts it. Each one locks a file, shared, for as long as it needs the
broker; the broker's own process waits for the lock of that file, exclusively, and then ends, however the others ended.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import RuntimeUnavailableError
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..processes import ROOT

_READY = "ready"


@contextmanager
def shared_broker(directory: Path) -> Iterator[KafkaBroker]:
    """Yield the broker of a directory, and start it if it does not run.

    Its address is known; it belongs to another process, so it cannot be stopped, killed or frozen here. Raises
    RuntimeUnavailableError if it cannot start.
    """
    directory.mkdir(exist_ok=True)
    with (directory / "users").open("a") as users:
        # While the last broker of the directory is ending, this waits for its end.
        fcntl.flock(users, fcntl.LOCK_SH)
        with (directory / "start").open("a") as start:
            fcntl.flock(start, fcntl.LOCK_EX)
            if not _is_running(directory):
                _start(directory)
        yield KafkaBroker(_data(directory))


def serve(directory: Path) -> None:
    """Run the broker of a directory until no process needs it."""
    with (directory / "users").open("a") as users, (directory / _READY).open("a") as ready:
        fcntl.flock(ready, fcntl.LOCK_EX)
        # In the end it has the topics of all tests of a run.
        broker = KafkaBroker(_data(directory), heap="1536m")
        try:
            broker.start()
            print(_READY, flush=True)
            fcntl.flock(users, fcntl.LOCK_EX)
        except RuntimeUnavailableError as error:
            print(error, flush=True)
        finally:
            broker.kill()
            shutil.rmtree(_data(directory), ignore_errors=True)


def _data(directory: Path) -> Path:
    return directory / "kafka"


def _is_running(directory: Path) -> bool:
    """Return whether a process has the broker."""
    with (directory / _READY).open("a") as ready:
        try:
            fcntl.flock(ready, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _start(directory: Path) -> None:
    """Start a process with the broker; it is nobody's child, because it may outlive this process."""
    with subprocess.Popen(
        ["/bin/sh", "-c", '"$@" & ', "sh", sys.executable, "-m", __name__, str(directory)],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = process.stdout.readline()
        if said.rstrip() != _READY:
            raise RuntimeUnavailableError(f"the tests' Kafka broker did not start: {said}{process.stdout.read()}")


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
