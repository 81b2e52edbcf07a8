"""Functions that run in a child process: killed at a step, without room on the disk, or racing with another call."""

from __future__ import annotations

import atexit
import builtins
import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from io import BytesIO
from multiprocessing.connection import Client, Connection, Listener, Pipe
from pathlib import Path
from struct import Struct
from threading import Thread
from types import BuiltinFunctionType, FrameType
from typing import Any, NamedTuple, NoReturn, Protocol

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
    """Starts children by forking a clean process without this one's threads: a library's threads do not survive a fork.

    `modules`, and those of the functions that run, are imported in that process once, and nothing of them is called. A
    function is pickled by name.
    """

    def __init__(self, modules: Sequence[str] = (), hash_seed: str | None = None) -> None:
        command = [sys.executable, "-c", _SERVE, json.dumps(sys.path), json.dumps(list(modules))]
        environment = None if hash_seed is None else {**os.environ, "PYTHONHASHSEED": hash_seed}
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def close(self) -> None:
        """End the process that starts them."""
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
            pid = self._ask((listener.address, run.__module__, work))
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
    """Return the starter of children with these modules, cached until this process ends: starting Python takes long."""
    children = CleanChildren(modules, hash_seed)
    atexit.register(children.close)
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
            address, module, work = request
            with suppress(Exception):  # the child says what is wrong
                import_module(module)
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
    def __init__(self, text: str) -> None:
        self.text = text


def answer(connection: Connection, what: str = "") -> Any:
    """Return the child's message. Fails with its traceback if it failed.

    Raises EOFError if the child has ended; where `what` names its work, AssertionError.
    """
    assert connection.poll(60), "the other process did not answer within a minute"
    try:
        answer = connection.recv()
    except EOFError:
        if what:
            raise AssertionError(f"{what} ended the process") from None
        raise
    assert not isinstance(answer, _Failure), answer.text
    return answer


def ask(connection: Connection, *order: Any) -> Any:
    """Send a child an order: a name and its arguments; return its answer."""
    connection.send(order)
    return answer(connection)


def orders(connection: Connection) -> Iterator[Any]:
    """In a child: yield the test's orders, until it ends the connection."""
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        yield order


def outcome_of(act: Callable[[], Any], *known: type[Exception], done: str = "", with_message: bool = False) -> Any:
    """Return a call's result, or `done`, or the name of the first class of `known` that its error belongs to.

    For another error, or `with_message`, also the message.
    """
    try:
        result = act()
        return done or result
    except Exception as error:
        name = next((kind.__name__ for kind in known if isinstance(error, kind)), None)
        return f"{name or type(error).__name__}: {error}" if with_message or name is None else name


class CallStep(NamedTuple):
    """A call of a function that is written in C, and which of the calls in that place it is."""

    file: str
    line: int
    code: str
    at: int
    called: str
    time: int

    def __str__(self) -> str:
        return f"{self.called} (in {self.code}, {os.path.basename(self.file)}:{self.line}, call {self.time})"


def act_until_killed(connection: Connection, act: Callable[[], object], place: CallStep | None) -> None:
    """In a child: act, and kill this process before the step `place`; if it survives, send further steps."""
    times = act_in_steps(act, [] if place is None else [place], lambda: os.kill(os.getpid(), signal.SIGKILL))
    connection.send(
        [CallStep(*call, time) for call, count in times.items() for time in sorted({1, count // 2 + 1, count})]
    )


def call_until_killed(
    connection: Connection, target: Any, calls: Sequence[tuple[str, Sequence[Any]]], place: CallStep | None
) -> None:
    """In a child: call methods of an object, send "ready" before the last call, and kill this process at its step."""
    *before, (last, arguments) = calls
    for method, given in before:
        getattr(target, method)(*given)
    connection.send("ready")
    act_until_killed(connection, lambda: getattr(target, last)(*arguments), place)


def act_in_steps(
    act: Callable[[], object],
    places: Sequence[CallStep],
    stop: Callable[[], object],
    made: list[CallStep] | None = None,
) -> dict[tuple[str, int, str, int, str], int]:
    """Act, and call `stop` before some steps; return the steps without their times, and how often each was made.

    `made` gets each step when it is made. Python tells of the calls of functions that are written in C: files change in
    such functions only, and not in those of Python's own types.
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
            made.append(CallStep(*call, times[call]))
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


def places_in(connection: Connection, place: CallStep | None, action: str) -> list[CallStep]:
    """Return the steps of the child's action at which to kill others; none if it was killed at `place`."""
    try:
        return list(answer(connection))
    except EOFError:
        assert place is not None, f"{action} in a process of its own ended that process"
        return []


def chosen(places: Sequence[CallStep], most: int) -> list[CallStep]:
    """Return about `most` of the places, the last ones first: half of them the last, half spread over the others."""
    if len(places) <= most:
        return list(places[::-1])
    last = most // 2
    others = places[:-last]
    return [*places[: -last - 1 : -1], *others[:: -(-len(others) // last)]]


@contextmanager
def without_room(directory: Path | None = None) -> Iterator[None]:
    """Limit this process's files to 1 MiB, or to the largest one that is in `directory` now."""
    files = () if directory is None else directory.rglob("*")
    largest = max((file.stat().st_blocks * 512 for file in files if file.is_file()), default=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(largest, 1 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


Outcome = tuple[list[str], Any]
"""The result or error of each of the two calls, of each side's later calls, and the content at the end."""

_RULE = "two calls at once must end as one after the other"
_LEAST_PATIENCE = 0.03
_FREES = re.compile("release|unlock|flock|lockf")
"""Substrings of names of functions that free a lock. Between two locks there may be one step, and many where one is
held.
"""


class Side(Protocol):
    """What a side of races does. Each method but these two gets ready, and returns the call that is raced."""

    afterwards: Callable[[], object]
    """Called when both calls have ended: it shows, for instance, who has a task now."""

    def begin(self, name: str, number: int) -> None:
        """Begin the race of a number, as "one", which is stopped, or "two"."""
        ...

    def end(self) -> None:
        """Close the objects of the previous race."""
        ...


def act_as(connection: Connection, side: Side, call: str, error: type[Exception]) -> None:
    """For each race: get ready, act, wait where that is to be stopped, and send the outcome and the steps.

    `error` is the type that the interface raises; other ones are in the outcome with their message.
    """

    def result_of(act: Callable[[], object]) -> str:
        try:
            return repr(act())
        except error as raised:
            return type(raised).__name__
        except Exception as raised:
            return f"{type(raised).__name__}: {raised}"

    def stop() -> None:
        connection.send("stopped")
        connection.recv()

    while True:
        try:
            side.begin(*connection.recv())
            act = getattr(side, call.replace(" ", "_"))()
            connection.send("ready")
            place = connection.recv()
        except (EOFError, OSError):
            side.end()
            return
        outcomes: list[str] = []
        places = [] if place is None else [place]
        steps: list[CallStep] = []
        act_in_steps(partial(_keep, outcomes, result_of, act), places, stop, steps)
        # The last step is the end of the call: what stops there ends as one call after the other does.
        connection.send((outcomes[0], steps[:-1]))
        connection.recv()
        connection.send(result_of(side.afterwards))


def _keep(outcomes: list[str], result_of: Callable[[Callable[[], object]], str], act: Callable[[], object]) -> None:
    outcomes.append(result_of(act))


@contextmanager
def thread_as(side: Side, call: str, error: type[Exception]) -> Iterator[Connection]:
    """Let a thread of this process act as a side."""
    ours, theirs = Pipe()
    thread = Thread(target=act_as, args=(theirs, side, call, error), daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join(60)


class Race:
    """Lets two sides act at once, each a connection to a thread or a process; `look` returns the content after that."""

    def __init__(self, held: Connection, other: Connection, look: Callable[[int], Any]) -> None:
        self._held = held
        self._other = other
        self._look = look
        self._number = 0
        self._steps: list[CallStep] = []
        self._waited = False
        self._patience = 60.0
        """Seconds that the other call gets to show that it waits for the held one."""

    def check(self, most: int, what: str, error: type[Exception]) -> None:
        """Stop one call at about `most` of its steps, and where it has just freed a lock.

        Raises AssertionError where the outcome is that of no order.
        """
        allowed = []
        # The held call begins when the other has not: its steps are those of the order in which it is first. That
        # order is the second here, when no step is one of a first call alone.
        for is_other_first in (True, False):
            began = time.monotonic()
            allowed.append(self._run(None, is_other_first=is_other_first))
            self._patience = max(_LEAST_PATIENCE, 5 * (time.monotonic() - began))
        closed = number = 0
        firsts = sum(step.time == 1 for step in self._steps)
        for before, place in zip([None, *self._steps], self._steps):
            number += place.time == 1
            if before is None or not _FREES.search(before.called):
                if place.time > 1 or (number - 1) % -(-firsts // most):
                    continue
                # Where a lock is held, the other one waits: the neighbours of such a step add nothing.
                closed -= 1
                if closed > 0:
                    continue
            where = f"{what}, which came when the first was before {place}"
            try:
                found = self._run(place)
            except Exception as raised:
                raise AssertionError(f"{where}; then it raised {raised!r}; {_RULE}") from raised
            closed = 3 if self._waited else 0
            assert any(_agree(found, each, error.__name__) for each in allowed), (
                f"{where}: found {found}; in this order it is {allowed[1]}, in the other {allowed[0]}; {_RULE}"
            )

    def _run(self, place: CallStep | None, *, is_other_first: bool = False) -> Outcome:
        """Let both act, the other one while the held one is stopped at a step; without one, one after the other."""
        self._number += 1
        sides = [self._held, self._other]
        for each, name in zip(sides, ("one", "two"), strict=True):
            each.send((name, self._number))
            ready = answer(each)
            assert ready == "ready", f"a side that gets ready answers {ready!r}"
        if place is None:
            for side in sides[::-1] if is_other_first else sides:
                side.send(None)
                assert side.poll(60), "a call did not end within a minute"
        else:
            self._held.send(place)
            assert self._held.poll(60), "a call did not end within a minute"
            first = answer(self._held)
            self._other.send(None)
            self._waited = first == "stopped" and not self._other.poll(self._patience)
            if first == "stopped":
                self._held.send("go on")
        if place is None or first == "stopped":
            first = answer(self._held)
        self._steps = first[1] if place is None else self._steps
        outcomes = [first[0], answer(self._other)[0]]
        for side in sides:
            side.send("go on")
            outcomes.append(answer(side))
        return outcomes, self._look(self._number)


def _agree(found: Outcome, expected: Outcome, unknown: str) -> bool:
    """Return whether two outcomes are one; the outcome of a call that raised the `unknown` error itself is unknown."""
    calls: Sequence[tuple[str, str]] = list(zip(found[0], expected[0], strict=True))
    return found[1] == expected[1] and all(one in (two, unknown) for one, two in calls)
