"""Surroundings of a program's code that are not those of the test: a thread, a time zone, the machine's clock."""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dis import Instruction, get_instructions
from itertools import takewhile
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

ZONES = ("<-2359>23:59", "<-11>11", "<+0545>-5:45", "<+14>-14", "<+2359>-23:59")
"""Time zones, as the variable TZ has them: in each it is another hour, and in most of them often another day."""
WEEK_SECONDS = 7 * 86_400
_JUMP_SECONDS = 53_398
"""By how much the clock jumps: the golden ratio of a day, so it is soon at each hour, and at each day of the week."""
MONDAY_SECONDS = 1_704_067_200
"""The midnight (UTC) with which a week of 2024 begins."""
AGES_SECONDS = (-100_000, -2_500, 1, 90, 7_000, 100_000, 800_000, 4_000_000, 40_000_000, 400_000_000)
"""How old a record may be by a clock: between two of them lie a minute, an hour, a day, a week, a month, and a year."""
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_NO_STEPS = ("CACHE", "PRECALL")


def in_other_surroundings(act: Callable[[], T], zone: str) -> T:
    """Return `act()` of a new thread, in a time zone.

    A task host has threads of its own, and the zone of its machine. A new thread has no `threading.local` of another,
    no context variables, and the decimal context with which Python begins.
    """
    before = os.environ.get("TZ")
    _set_zone(zone)
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(act).result()
    finally:
        _set_zone(before)


def _set_zone(zone: str | None) -> None:
    if zone is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = zone
    time.tzset()


class MachineClock:
    """A clock that begins `seconds` after the midnight (UTC) with which a week of 2024 begins."""

    def __init__(self, seconds: int) -> None:
        self.set(MONDAY_SECONDS + seconds)
        self._replaced: list[tuple[dict[str, Any], str, Any]] = []
        moved: dict[str, Any] = {
            "time": self._now,
            "time_ns": lambda: int(self._now() * 1_000_000_000),
            **{name: self._moved(getattr(time, name)) for name in ("monotonic", "perf_counter")},
            **{name: self._at_a_time(getattr(time, name)) for name in ("localtime", "gmtime", "ctime")},
            "strftime": lambda form, at=None: time.strftime(form, time.localtime(self._now()) if at is None else at),
        }
        dates = {name: _Dates(getattr(datetime, name), self._now) for name in ("datetime", "date")}
        self._instead = {
            **{id(getattr(time, name)): function for name, function in moved.items()},
            **{id(getattr(datetime, name)): each for name, each in dates.items()},
            id(time): _changed(time, moved),
            id(datetime): _changed(datetime, dates),
        }

    def _now(self) -> float:
        return time.time() + self._ahead

    def _moved(self, function: Callable[[], float]) -> Callable[[], float]:
        return lambda: function() + self._ahead

    def _at_a_time(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda seconds=None: function(self._now() if seconds is None else seconds)

    def set(self, seconds: float) -> None:
        """Let it show so many seconds since 1970."""
        self._ahead = seconds - time.time()

    def jump(self) -> None:
        """Jump ahead."""
        self._ahead += _JUMP_SECONDS

    def show(self, made: Sequence[Any]) -> None:
        """Let functions and methods of `made` have this clock in place of the modules `time` and `datetime`.

        Where the classes of `datetime` are used as types, they are left alone.
        """
        functions = [each for each in made if isinstance(each, FunctionType)]
        for names in {id(each.__globals__): each.__globals__ for each in functions}.values():
            own = [each for each in [*functions, *_held(names)] if each.__globals__ is names]
            for name, value in list(names.items()):
                if id(value) in self._instead and (_is_of_time(value) or not _is_type(name, value, own, made)):
                    names[name] = self._instead[id(value)]
                    self._replaced.append((names, name, value))

    @contextmanager
    def shown(self, made: Sequence[Any]) -> Iterator[None]:
        """Show functions and methods of `made` this clock meanwhile."""
        self.show(made)
        try:
            yield
        finally:
            while self._replaced:
                names, name, value = self._replaced.pop()
                names[name] = value


def code_beside(kinds: Sequence[type]) -> list[Any]:
    """Return the classes and functions of the modules in which classes and their bases are, with methods."""
    modules = dict.fromkeys(base.__module__ for kind in kinds for base in kind.__mro__)
    made: list[Any] = []
    for module in modules.keys() - {"builtins", "abc", "typing"}:
        own = [each for each in vars(sys.modules[module]).values() if getattr(each, "__module__", "") == module]
        classes = [each for each in (*own, *kinds) if isinstance(each, type) and each.__module__ == module]
        methods = [_function(each) for kind in classes for each in vars(kind).values()]
        made += [*own, *classes, *filter(None, methods)]
    return made


def _function(member: Any) -> FunctionType | None:
    found = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return found if isinstance(found, FunctionType) else None


class _Dates:
    """A class of `datetime` that is called, and of which attributes are used."""

    def __init__(self, kind: Any, now: Callable[[], float]) -> None:
        self._kind, self._now = kind, now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._kind(*given, **named)

    def now(self, tz: datetime.tzinfo | None = None) -> Any:
        return self._kind.fromtimestamp(self._now(), tz)

    def today(self) -> Any:
        return self._kind.fromtimestamp(self._now())

    def utcnow(self) -> Any:
        return self.now(datetime.UTC).replace(tzinfo=None)


def _changed(module: ModuleType, values: dict[str, Any]) -> ModuleType:
    made = ModuleType(module.__name__)
    vars(made).update({**vars(module), **values})
    return made


def _is_of_time(value: Any) -> bool:
    return value is time or getattr(value, "__module__", None) == "time"


def _is_type(name: str, value: Any, functions: Sequence[FunctionType], made: Sequence[Any]) -> bool:
    """Return whether a global of functions, `datetime` or a class of it, may be used as a type by their module."""
    module = functions[0].__module__
    notes = [str(getattr(each, "__annotations__", "")) for each in made if each.__module__ == module]
    chains = [chain for each in functions for chain in _chains(each.__code__, name)]
    return any(name in each for each in notes) or not all(
        len(chain) > (value is datetime and chain[:1] in (["datetime"], ["date"])) for chain in chains
    )


def _held(names: Mapping[str, Any]) -> Iterator[FunctionType]:
    """Yield the functions that the lists and dicts of a module have."""
    for each in names.values():
        if type(each) in (dict, list, tuple, set):
            yield from (held for held in (each.values() if type(each) is dict else each) if type(held) is FunctionType)


def _chains(code: CodeType, name: str) -> Iterator[list[str]]:
    """Yield for each use of a global by some code the names of the attributes behind it, and "()" for a call."""
    steps = [step for step in get_instructions(code) if step.opname not in _NO_STEPS]
    for at, step in enumerate(steps):
        if step.opname == "LOAD_GLOBAL" and step.argval == name:
            chain = [step, *takewhile(lambda each: each.opname in _ATTRIBUTES, steps[at + 1 :])]
            after = [each.opname for each in steps[at + len(chain) : at + len(chain) + 1]]
            # Before Python 3.13 this step belongs to the next call.
            has_null = after == ["PUSH_NULL"] and sys.version_info >= (3, 13)
            is_called = has_null or any(_has_null(each) for each in (chain[0], chain[-1]))
            yield [*(each.argval for each in chain[1:]), *(["()"] if is_called else [])]
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _chains(part, name)


def _has_null(step: Instruction) -> bool:
    """Return whether a step loads, beside its value, what a call has in front of its arguments."""
    has_bit = step.opname == "LOAD_GLOBAL" or (step.opname == "LOAD_ATTR" and sys.version_info >= (3, 12))
    return step.opname == "LOAD_METHOD" or (has_bit and bool((step.arg or 0) & 1))
