"""Stopwatch: divides the time of a thread among parts that call each other, less the measured cost of its own hooks."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

_CALLS, _ROUNDS = 4_000, 7
_HERE = "penstock profile"


class Part(NamedTuple):
    """What is measured: `kind` is "phase", "node", "schedule", "flush", "store" or "serde"; `of` a method, or ""."""

    kind: str
    name: str
    of: str = ""

    @property
    def label(self) -> str:
        """The part's name in a flame graph."""
        if self.kind == "phase":
            return self.name
        if self.kind == "schedule":
            return f"punctuator or timer of {self.name}"
        return f"{self.kind} {self.name}.{self.of}" if self.of else f"{self.kind} {self.name}"


class CallNode(NamedTuple):
    """One place of the tree of calls: how often it was called, and its own seconds, without what the hooks took.

    `path`: the part itself, then its callers, the nearest first; empty for the root.
    """

    path: tuple[Part, ...]
    times: int
    seconds: float

    def inside(self) -> tuple[str | None, tuple[Part, ...]]:
        """Return the node at work, None for the engine, and the part of the path that is inside it."""
        for index, part in enumerate(self.path):
            if part.kind in ("node", "schedule"):
                return part.name, self.path[:index]
        return None, self.path


class Stopwatch:
    """Reads the clock whenever one part calls another: the time goes to the part that was at work.

    What a hook itself does between its two looks at the clock counts for nobody. The rest of its cost, the looks and
    the calls, is measured beside (`calibrate`) and taken off. One thread uses it.
    """

    def __init__(self) -> None:
        self._paths: list[tuple[Part, ...]] = [()]
        self._above = [-1]
        self._own = [0]
        self._times = [0]
        self._below: list[dict[Part, int]] = [{}]
        self._now: list[int] = [0, perf_counter_ns()]
        """The place at work, and when its time began to be counted."""
        self._left: list[int] = []
        self._excess = 0.0, 0.0
        self.labels: dict[int, str] = {}
        """The labels of the hooks' frames, by the id of their code."""
        self._codes: list[CodeType] = []

    # ------------------------------------------------------------------ hooks

    def hook(self, part: Part, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run` with its time counted for `part`."""
        now, state, own, times, place = perf_counter_ns, self._now, self._own, self._times, self._place
        known: dict[int, int] = {}

        def hook(*given: Any, **named: Any) -> Any:
            began = now()
            above = state[0]
            own[above] += began - state[1]
            here = known.get(above)
            if here is None:
                here = known[above] = place(above, part)
            times[here] += 1
            state[0] = here
            state[1] = now()
            try:
                return run(*given, **named)
            finally:
                ended = now()
                own[here] += ended - state[1]
                state[0] = above
                state[1] = now()

        # The part's name in Python's own errors, and a frame that a sampler can tell apart.
        function = cast("FunctionType", hook)
        function.__qualname__ = part.of or ("forward" if part.kind == "node" else part.name)
        code = function.__code__ = function.__code__.replace(co_name=part.label, co_filename=_HERE)
        self._codes.append(code)  # an id is its own for as long as the code lives
        self.labels[id(code)] = part.label
        return hook

    def enter(self, part: Part) -> None:
        """Begin the time of `part`, which `leave` ends."""
        began = perf_counter_ns()
        above = self._now[0]
        self._own[above] += began - self._now[1]
        here = self._place(above, part)
        self._times[here] += 1
        self._left.append(above)
        self._now[:] = here, perf_counter_ns()

    def leave(self) -> None:
        """End the last part that `enter` began; do nothing without one."""
        ended = perf_counter_ns()
        if self._left:
            self._own[self._now[0]] += ended - self._now[1]
            self._now[:] = self._left.pop(), perf_counter_ns()

    def _place(self, above: int, part: Part) -> int:
        below = self._below[above]
        if part not in below:
            below[part] = len(self._paths)
            self._paths.append((part, *self._paths[above]))
            self._above.append(above)
            self._own.append(0)
            self._times.append(0)
            self._below.append({})
        return below[part]

    # ------------------------------------------------------------------ what it costs, and what it found

    def calibrate(self) -> None:
        """Measure the cost that a hook's call adds to its own part, and to the caller's."""
        # The least of each: a busy machine makes some longer.
        loop, call, caller, inside = map(min, zip(*(_measured() for _ in range(_ROUNDS)), strict=True))
        self._excess = max(0.0, inside - (call - loop)) / _CALLS, max(0.0, caller - loop) / _CALLS

    def begin(self) -> None:
        """Forget the times so far."""
        self._own[:] = [0] * len(self._own)
        self._times[:] = [0] * len(self._times)
        self._now[1] = perf_counter_ns()

    def calls(self) -> list[CallNode]:
        """Return the tree of calls, callers first; the first is the root."""
        seconds = [float(own) for own in self._own]
        inside, outside = self._excess
        for here, above in list(enumerate(self._above))[1:]:
            seconds[here] -= inside * self._times[here]
            seconds[above] -= outside * self._times[here]
        return [
            CallNode(path, times, max(0.0, own) / 1e9)
            for path, times, own in zip(self._paths, self._times, seconds, strict=True)
        ]


def _measured() -> tuple[float, ...]:
    """Return the nanoseconds of a loop, of one that calls a function, and of the parts of one that calls its hook."""
    watch = Stopwatch()

    def nothing(record: Any) -> None:
        return None

    hooked = watch.hook(Part("node", "nothing"), nothing)
    began = perf_counter_ns()
    for _ in range(_CALLS):
        pass
    looped = perf_counter_ns()
    for _ in range(_CALLS):
        nothing(None)
    called = perf_counter_ns()
    watch.begin()
    for _ in range(_CALLS):
        hooked(None)
    return (looped - began, called - looped, *(call.seconds * 1e9 for call in watch.calls()))
