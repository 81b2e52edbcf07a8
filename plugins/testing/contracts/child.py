"""Functions that a test runs in a child process and kills."""

from __future__ import annotations

import atexit
import builtins
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from io import BytesIO
from multiprocessing.connection import Client, Connection, Listener, Pipe
from pathlib import Path
from struct import Struct
from types import BuiltinFunctionType, FrameType
from typing import Any, NamedTuple, NoReturn

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
    pickled, with its arguments, so they have to be importable. It finds the module path, the environment and the
    directory that this process has when it starts. `hash_seed`: the PYTHONHASHSEED of the children.
    """

    def __init__(self, modules: Sequence[str] = (), hash_seed: str | None = None) -> None:
        command = [sys.executable, "-c", _SERVE, json.dumps(sys.path), json.dumps(list(modules))]
        environment = None if hash_seed is None else {**os.environ, "PYTHONHASHSEED": hash_seed}
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def __enter__(self) -> CleanChildren:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.communicate()

    @contextmanager
    def started(self, run: Callable[..., None], *arguments: Any, kill: bool = False) -> Iterator[Connection]:
        """Run `run(connection, *arguments)` in a child, which ends, or is killed, with the `with` block."""
        try:
            work = pickle.dumps((sys.path, dict(os.environ), os.getcwd())) + pickle.dumps((run, arguments))
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
        assert self._server.stdin is not None and self._server.stdout is not None, "the child has no pipes"
        pickle.dump(request, self._server.stdin)
        self._server.stdin.flush()
        return pickle.load(self._server.stdout)


@cache
def children_for(*modules: str, hash_seed: str | None = None) -> CleanChildren:
    """Return what starts children with these modules, until this process ends: starting Python takes long."""
    children = CleanChildren(modules, hash_seed)
    atexit.register(children.__exit__)
    return children


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
        given = BytesIO(work)
        sys.path[:], environment, directory = pickle.load(given)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        run, arguments = pickle.load(given)
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


class Step(NamedTuple):
    """A call of a function that is written in C, and which of the calls in that place it is."""

    file: str
    line: int
    code: str
    at: int
    called: str
    time: int

    def __str__(self) -> str:
        return f"{self.called} (in {self.code}, {os.path.basename(self.file)}:{self.line}, call {self.time})"


def act_until_killed(connection: Connection, act: Callable[[], object], place: Step | None) -> None:
    """In a child: act, and kill this process before a step of that; if it survives, send the steps to kill others at.

    In a loop, the first and the last time, and one between, are enough.
    """
    places = [] if place is None else [place]
    times = act_in_steps(act, places, lambda: os.kill(os.getpid(), signal.SIGKILL))
    connection.send([Step(*call, time) for call, count in times.items() for time in sorted({1, count // 2 + 1, count})])


def act_in_steps(
    act: Callable[[], object], places: Sequence[Step], stop: Callable[[], object], made: list[Step] | None = None
) -> dict[tuple[str, int, str, int, str], int]:
    """Act, and call `stop` before some steps; return the steps without their times, and how often each was made.

    `made` gets each step when it is made.

    Python tells of the calls of functions that are written in C: files change in such functions only, and not in those
    of Python's own types.
    """
    times: dict[tuple[str, int, str, int, str], int] = {}
    stops = set(places)

    def step(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or isinstance(getattr(called, "__self__", None), _IN_MEMORY) or called in _HARMLESS:
            return
        code = frame.f_code
        call = code.co_filename, frame.f_lineno, code.co_qualname, frame.f_lasti, called.__qualname__
        times[call] = times.get(call, 0) + 1
        if made is not None:
            made.append(Step(*call, times[call]))
        if stops and (*call, times[call]) in stops:
            stop()

    sys.setprofile(step)
    try:
        act()
    finally:
        sys.setprofile(None)
    return times


_IN_MEMORY = (str, bytes, bytearray, memoryview, int, float, list, tuple, dict, set, frozenset, Struct)
_HARMLESS = {each for each in vars(builtins).values() if isinstance(each, BuiltinFunctionType)} - {open}


def places_in(connection: Connection, place: Step | None, action: str) -> list[Step]:
    """Return the steps of the child's action at which to kill others; none if it was killed at `place`."""
    try:
        return list(answer(connection))
    except EOFError:
        assert place is not None, f"{action} in a process of its own ended that process"
        return []


def chosen(places: Sequence[Step], most: int) -> list[Step]:
    """Return about `most` of the places, the last ones first: half of them the last, half spread over the others."""
    if len(places) <= most:
        return list(places[::-1])
    last = most // 2
    others = places[:-last]
    return [*places[: -last - 1 : -1], *others[:: -(-len(others) // last)]]


@contextmanager
def without_room(directory: Path | None = None) -> Iterator[None]:
    """Let no file of this process grow above 1 MiB, or above the largest one that is in `directory` now."""
    files = () if directory is None else directory.rglob("*")
    largest = max((file.stat().st_blocks * 512 for file in files if file.is_file()), default=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(largest, 1 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
