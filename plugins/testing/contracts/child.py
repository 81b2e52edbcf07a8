"""Functions that a test runs in a child process and kills."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn


@contextmanager
def forked(run: Callable[[Connection], None], *, kill: bool = False) -> Iterator[Connection]:
    """Run a function in a child process, which ends, or is killed, with the `with` block.

    Forked and not spawned, so that a test may hand over whatever it has; no backend is open when it happens.
    """
    ours, theirs = Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside a test runner's threads
        child = os.fork()
    if child == 0:
        ours.close()
        _run(run, theirs)
    theirs.close()
    try:
        yield ours
    except BaseException:
        kill = True
        raise
    finally:
        if kill:
            os.kill(child, signal.SIGKILL)
        ours.close()
        os.waitpid(child, 0)


def _run(run: Callable[[Connection], None], connection: Connection) -> NoReturn:
    try:
        run(connection)
    except BaseException:
        connection.send(_Failure(traceback.format_exc()))
    finally:
        os._exit(0)


class _Failure:
    """What went wrong in a child."""

    def __init__(self, text: str) -> None:
        self.text = text


def answer(connection: Connection) -> Any:
    """Return what the child sent. Fails with its traceback if it failed."""
    assert connection.poll(60), "the other process did not answer within a minute"
    answer = connection.recv()
    assert not isinstance(answer, _Failure), answer.text
    return answer
