"""Stopwatch: divides the time of a thread among the parts that call each other, and knows what its own hooks cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


class Call(NamedTuple):
    """One place of the tree of calls: what called what, how often, and the time of its own.

    `above` is the index of the caller's place; -1 for the root. `seconds` are without what the hooks took.
    """

    part: Part
    above: int
    times: int
    seconds: float


class Stopwatch:
    """Reads the clock whenever one part calls another: the time goes to the part that was at work.

    What a hook itself does between its two looks at the clock counts for nobody. The rest of its cost, the looks and
    the calls, is measured beside (`calibrate`) and taken off. One thread uses it.
    """

    def __init__(self) -> None:
        self._parts = [Part("phase", "")]
        self._above = [-1]
        self._own = [0]
        self._times = [0]
        self._below: list[dict[Part, int]] = [{}]
        self._now: list[int] = [0, perf_counter_ns()]
        """The place at work, and when its time began to be counted."""
        self._left: list[int] = []
        self._excess: dict[bool, tuple[float, float]] = {True: (0.0, 0.0), False: (0.0, 0.0)}
        self.labels: dict[int, str] = {}
        """The labels of the hooks' frames, by the id of their code."""
        self._codes: list[CodeType] = []

    # ------------------------------------------------------------------ hooks

    def record_hook(self, part: Part, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run` of a record, and optionally the child it goes to, with its time counted for `part`."""
        now, state, own, times, place = perf_counter_ns, self._now, self._own, self._times, self._place
        known: dict[int, int] = {}

        def hook(record: Any, to: Any = None) -> Any:
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
                return run(record) if to is None else run(record, to)
            finally:
                ended = now()
                own[here] += ended - state[1]
                state[0] = above
                state[1] = now()

        return self._named(hook, part)

    def hook(self, part: Part, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run` of any arguments with its time counted for `part`."""
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

        return self._named(hook, part)

    def enter(self, part: Part) -> None:
        """Begin the time of `part`, which `leave` ends."""
        began = perf_counter_ns()
        above = self._now[0]
        self._own[above] += began - self._now[1]
        here = self._place(above, part)
        self._times[here] += 1
        self._left.append(above)
        self._now[0] = here
        self._now[1] = perf_counter_ns()

    def leave(self) -> None:
        """End what `enter` began last; without that do nothing."""
        ended = perf_counter_ns()
        if self._left:
            self._own[self._now[0]] += ended - self._now[1]
            self._now[0] = self._left.pop()
            self._now[1] = perf_counter_ns()

    def _place(self, above: int, part: Part) -> int:
        below = self._below[above]
        here = below.get(part)
        if here is None:
            here = below[part] = len(self._parts)
            self._parts.append(part)
            self._above.append(above)
            self._own.append(0)
            self._times.append(0)
            self._below.append({})
        return here

    def _named(self, hook: Callable[..., Any], part: Part) -> Callable[..., Any]:
        """Give a hook the part's name, in Python's own errors, too, and a frame that a sampler can tell apart."""
        function = cast("FunctionType", hook)
        name = part.of or ("forward" if part.kind == "node" else part.name)
        function.__qualname__ = name
        code = function.__code__ = function.__code__.replace(co_name=part.label, co_filename=_HERE)
        self._codes.append(code)  # an id is its own for as long as the code lives
        self.labels[id(code)] = part.label
        return hook

    # ------------------------------------------------------------------ what it costs, and what it found

    def calibrate(self) -> None:
        """Measure what a call of each hook adds to the part that it measures, and to the one that calls it."""
        for of_records in (True, False):
            # The least: what a busy machine adds to one round would be taken off everywhere.
            inside, outside = zip(*(_excess(of_records) for _ in range(_ROUNDS)), strict=True)
            self._excess[of_records] = max(0.0, min(inside)), max(0.0, min(outside))

    def begin(self) -> None:
        """Forget the times so far."""
        self._own[:] = [0] * len(self._own)
        self._times[:] = [0] * len(self._times)
        self._now[1] = perf_counter_ns()

    def calls(self) -> list[Call]:
        """Return the tree of calls, callers first; the first is the root."""
        seconds = [float(each) for each in self._own]
        for here, above in enumerate(self._above):
            if above < 0:
                continue
            inside, outside = self._excess[self._parts[here].kind in ("node", "phase", "schedule", "flush")]
            seconds[here] -= inside * self._times[here]
            seconds[above] -= outside * self._times[here]
        return [
            Call(part, above, times, max(0.0, own) / 1e9)
            for part, above, times, own in zip(self._parts, self._above, self._times, seconds, strict=True)
        ]


def ancestors(calls: list[Call], index: int) -> Iterator[Part]:
    """Yield the parts that called the one at `index`, the nearest first, without the root."""
    above = calls[index].above
    while above > 0:
        yield calls[above].part
        above = calls[above].above


def _excess(of_records: bool) -> tuple[float, float]:
    """Return how many nanoseconds a hook adds to what it calls, and to its caller."""
    watch = Stopwatch()

    def nothing(record: Any) -> None:
        return None

    hooked = (watch.record_hook if of_records else watch.hook)(Part("node", "nothing"), nothing)
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
    caller, inside = (each.seconds * 1e9 for each in watch.calls())
    loop, call = looped - began, called - looped
    return (inside - (call - loop)) / _CALLS, (caller - loop) / _CALLS
