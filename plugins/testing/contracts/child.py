"""Functions that a test runs in a child process and kills."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener, Pipe
from typing import Any, NoReturn

_SERVE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    f"from {__name__} import serve; serve(json.loads(sys.argv[2]))"
)


@contextmanager
def forked(run: Callable[[Connection], None], *, kill: bool = False) -> Iterator[Connection]:
    """Run a function in a child process, which ends, or is killed, with the `with` block.

    Forked and not spawned, so that a test may hand over whatever it has. What uses a library with threads of its own
    is for `CleanChildren`.
    """
    ours, theirs = Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside a test runner's threads
        child = os.fork()
    if child == 0:
        ours.close()
        _run(run, theirs)
    theirs.close()
    with _until_its_end(ours, child, lambda: os.waitpid(child, 0), kill):
        yield ours


@contextmanager
def _until_its_end(connection: Connection, child: int, wait: Callable[[], object], kill: bool) -> Iterator[None]:
    """End a child with the block: close its connection, or kill it after an error or with `kill`; then `wait`."""
    try:
        yield
    except BaseException:
        kill = True
        raise
    finally:
        if kill:
            os.kill(child, signal.SIGKILL)
        connection.close()
        wait()


class CleanChildren:
    """Starts children of a process that has nothing of this one, because a library's threads do not survive a fork.

    `modules` are imported in that process once, and nothing of them is called. A function that runs in a child is
    pickled, with its arguments, so they have to be importable.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        command = [sys.executable, "-c", _SERVE, json.dumps(sys.path), json.dumps(list(modules))]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> CleanChildren:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.communicate()

    @contextmanager
    def started(self, run: Callable[..., None], *arguments: Any, kill: bool = False) -> Iterator[Connection]:
        """Run `run(connection, *arguments)` in a child, which ends, or is killed, with the `with` block."""
        try:
            work = pickle.dumps((run, arguments))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise AssertionError(
                f"a second process cannot import what it is to run: {error}. Let `open` of the suite be a class or "
                "function of a module, as a staticmethod, not a lambda or a function inside another"
            ) from error
        with Listener(None, "AF_UNIX") as listener:
            pid = self._ask((listener.address, work))
            connection = listener.accept()
        with _until_its_end(connection, pid, lambda: self._ask(pid), kill):
            yield connection

    def _ask(self, request: Any) -> Any:
        assert self._server.stdin is not None and self._server.stdout is not None
        pickle.dump(request, self._server.stdin)
        self._server.stdin.flush()
        return pickle.load(self._server.stdout)


def serve(modules: Sequence[str]) -> None:
    """Start the children of a `CleanChildren`, and wait for their ends, until it closes this process's input."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what children print is no answer
    for module in modules:
        import_module(module)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if isinstance(request, int):
            os.waitpid(request, 0)
        else:
            address, work = request
            request = os.fork()
            if not request:
                answers.close()
                _run(_call(work), Client(address))
        pickle.dump(request, answers)
        answers.flush()


def _call(work: bytes) -> Callable[[Connection], None]:
    def call(connection: Connection) -> None:
        run, arguments = pickle.loads(work)
        run(connection, *arguments)

    return call


def _run(run: Callable[[Connection], None], connection: Connection) -> NoReturn:
    try:
        run(connection)
    except BaseException:
        connection.send(_Failure(traceback.format_exc()))
    finally:
        os._exit(0)


class _Failure:
    """An error in a child."""

    def __init__(self, text: str) -> None:
        self.text = text


def answer(connection: Connection) -> Any:
    """Return the child's message. Fails with its traceback if it failed."""
    assert connection.poll(60), "the other process did not answer within a minute"
    answer = connection.recv()
    assert not isinstance(answer, _Failure), answer.text
    return answer
