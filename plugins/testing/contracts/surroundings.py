"""Surroundings other than the test's: a thread, a time zone, a clock, a process; and serdes in them."""

from __future__ import annotations

import datetime
import decimal
import gc
import os
import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, chdir, contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from dis import Instruction, get_instructions
from inspect import Parameter, signature
from itertools import takewhile
from multiprocessing.connection import Connection
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

import pytest

from penstock import Serde, SerdeError

from .child import answer, children_for
from .expectations import expect_no_descriptors, shown
from .serde_tests import SerdeTests, reads

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
    with _time_zone(zone):
        return _in_a_thread(act)


def _in_a_thread(act: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(act).result()


@contextmanager
def _time_zone(zone: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    _set_zone(zone)
    try:
        yield
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
        for names in {id(function.__globals__): function.__globals__ for function in functions}.values():
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
    """A class of `datetime` with recorded calls and attribute uses."""

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
    chains = [chain for function in functions for chain in _chains(function.__code__, name)]
    return any(name in note for note in notes) or not all(
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
    """Return whether a bytecode step also loads the null in front of a call's arguments."""
    has_bit = step.opname == "LOAD_GLOBAL" or (step.opname == "LOAD_ATTR" and sys.version_info >= (3, 12))
    return step.opname == "LOAD_METHOD" or (has_bit and bool((step.arg or 0) & 1))


_ZONES = ("<+14>-14", "<-0330>3:30")
"""14 hours before UTC, and 3 1/2 behind it: what asks for the local hour or day finds another one."""


def run_elsewhere(act: Callable[[Any], Any], cargo: Any, seed: str, what: str) -> Any:
    """Return `act(cargo)` of another process; `what` names in messages what travels.

    Its hashes begin with `seed`, a number, which also chooses its time zone, decimal context and random numbers.
    """
    import cloudpickle

    try:
        sent = cloudpickle.dumps((act, cargo))
    except Exception as error:
        raise AssertionError(f"{what} travels to other processes, and cannot be pickled: {error!r}") from error
    children = children_for("cloudpickle", hash_seed=seed)
    with children.started(_act, sent, seed) as connection:
        try:
            return answer(connection)
        except (AssertionError, EOFError) as error:
            raise AssertionError(f"{what} failed in another process: {error or 'it ended'}") from error


def _act(connection: Connection, sent: bytes, seed: str) -> None:
    number = int(seed)
    _set_zone(_ZONES[number % len(_ZONES)])
    decimal.setcontext(decimal.Context(prec=3 + number % 2, rounding=decimal.ROUND_UP))
    random.seed(number)
    act, cargo = pickle.loads(sent)
    connection.send(act(cargo))


_CACHED = 3_000
"""So many values may be remembered."""


class SurroundingsTests(SerdeTests):
    """Bytes and values depend on the value and the serde's settings, on nothing else."""

    def test_surroundings_change_nothing(self) -> None:
        """Another host has another time zone; a program sets Python's decimal context, a directory, a thread."""
        serde, values = self.made(), self._near()
        first, form = [self._seen(serde, value) for value in values], serde.written_form()
        for where, surroundings in _SURROUNDINGS.items():
            with surroundings():
                self._check_again(serde, values, first, form, f"where {where}")
        _in_a_thread(lambda: self._check_again(serde, values, first, form, "where another thread calls"))

    def test_the_machines_clock_changes_nothing(self) -> None:
        """The machine's clock changes nothing: hosts' clocks differ, and saved data is read years later."""
        serde, values = self.made(), self._near()
        first = [self._seen(serde, value) for value in values]
        inner = [each for each in getattr(serde, "__dict__", {}).values() if isinstance(each, Serde)]
        clock = MachineClock(0)
        with clock.shown(code_beside([type(each) for each in (serde, *inner)])):
            for hours in (5, 22, 40, *(24 * 365 * years for years in (0.3, 9, 47, -23, -47))):
                clock.set(MONDAY_SECONDS + 3_600 * hours)
                seen = [self._seen(self.made(), value) for value in values]
                self._check_same(values, first, seen, "at another time by the machine's clock")

    def test_it_frees_what_it_was_given(self) -> None:
        """A task writes and reads for months: memory and descriptors do not grow with the values."""
        serde = self.made()
        value = next((sample for sample in self._samples(20) if numbered(sample, 0) is not None), None)
        fast = serde.serializer()
        count = 0

        def run() -> None:
            nonlocal count
            for _ in range(20):
                count += 1
                each = value if value is None else numbered(value, count)
                written = serde.serialize(each)
                fast(each)
                serde.deserialize(written)
                serde.deserialize_column([written])

        if value is None:
            pytest.skip("the suite cannot make many values of this serde")
        try:
            run()
        except Exception:
            pytest.skip("the suite cannot make many values of this serde")
        if os.path.isdir("/proc/self/fd"):
            expect_no_descriptors(run, "serialize and deserialize")
        sizes = []
        for _ in range(3):
            for _ in range(_CACHED // 20):
                try:
                    run()
                except Exception:
                    pytest.skip("the suite cannot make many values of this serde")
            gc.collect()
            sizes.append(sys.getallocatedblocks())
        growth = min(sizes[1] - sizes[0], sizes[2] - sizes[1])
        assert growth < _CACHED // 2, (
            f"after {_CACHED:,} more values that are different, the process has {growth:,} more objects: let what is "
            "remembered have an end"
        )

    def test_another_setting_has_another_written_form(self) -> None:
        """The form is saved with the state: a serde that reads what was saved as another value must not accept it."""
        for name, other in [*_with_other_settings(self.made(), self._samples(10)), *self._others()]:
            serde = self.made()
            form = serde.written_form()
            if other.unreadable(form):
                continue
            rule = f"{name} accepts what is saved as {form!r}"
            for value in self._samples(20):
                written = again = serde.serialize(value)
                read = reads(other, written)
                assert self.same(read, value), f"{rule}, and reads {value!r} as {shown(read)}: let written_form differ"
                if not self.for_keys or other.unfindable(form):
                    continue
                with suppress(Exception):
                    again = other.serialize(value)
                assert again == written, (
                    f"{rule} for keys, and writes {value!r} as {shown(again)}, where {shown(written)} is saved: let "
                    "written_form differ (or say that it is not for keys, and set for_keys = False in this suite)"
                )

    def test_only_its_own_written_form_is_read(self) -> None:
        """A serde reads only data of its own written form, and not of similar ones."""
        serde = self.made()
        form = serde.written_form()
        name = form.partition("(")[0]
        for other in (form + "2", "2" + form, form[:-1], name + "2" + form[len(name) :], f"Listed({form})", ""):
            try:
                reason = serde.unreadable(other)
            except Exception:
                continue  # it looks into the form, and finds nonsense
            assert reason, f"unreadable must say why {other!r} is not read: the form is {form!r}"

    def _others(self) -> Iterator[tuple[str, Serde[Any]]]:
        for number, make in enumerate(type(self).other_settings):
            yield f"the serde of other_settings[{number}]", make()

    def _near(self) -> list[Any]:
        return [*self._samples(25), *(value for values in self._neighbourhoods() for value in values)]

    def _seen(self, serde: Serde[Any], value: Any) -> tuple[Any, Any, Any]:
        """Return the bytes of a value, its text form, and the value read; the class of the error for a refused one."""
        try:
            written = serde.serialize(value)
        except Exception:
            return SerdeError, None, None
        try:
            text = serde.to_json(value)
        except Exception as error:
            text = type(error)
        return written, text, reads(serde, written)

    def _check_again(self, serde: Serde[Any], values: list[Any], first: list[Any], form: str, where: str) -> None:
        try:
            found = [
                (each.written_form(), [self._seen(each, value) for value in values]) for each in (serde, self.made())
            ]
        except Exception as error:
            raise AssertionError(f"{where}, it fails: {error!r}") from error
        for other, seen in found:
            assert other == form, f"written_form is {form!r}, and {other!r} {where}"
            self._check_same(values, first, seen, where)

    def _check_same(self, values: list[Any], first: list[Any], seen: list[Any], where: str) -> None:
        for value, (written, text, read), (now, as_text, then) in zip(values, first, seen, strict=True):
            assert (now, as_text) == (written, text), (
                f"{shown(value)} is {shown((written, text))}, and {shown((now, as_text))} {where}"
            )
            assert self._are_alike(then, read), (
                f"{shown(written)} is read as {shown(read)}, and as {shown(then)} {where}"
            )


@contextmanager
def _other_directory() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        yield


_SURROUNDINGS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "the time zone is Pacific/Kiritimati": lambda: _time_zone("Pacific/Kiritimati"),
    "the time zone is America/St_Johns": lambda: _time_zone("America/St_Johns"),
    "decimals have three digits": lambda: decimal.localcontext(decimal.Context(3, decimal.ROUND_UP)),
    "the directory is another one": _other_directory,
}


def numbered(value: Any, number: int) -> Any:
    """Return a value of the same types with the number in it; None if this one has no place for it."""
    kind = type(value)
    if kind is int:
        return number
    if kind is str:
        return str(number)
    if kind is bytes:
        return b"%d" % number
    if kind in (list, tuple):
        for at, each in enumerate(value):
            if (made := numbered(each, number)) is not None:
                return kind([*value[:at], made, *value[at + 1 :]])
    elif kind is dict:
        for key, each in value.items():
            if (made := numbered(each, number)) is not None:
                return {**value, key: made}
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.init and (made := numbered(getattr(value, field.name), number)) is not None:
                return replace(value, **{field.name: made})
    return None


_CHOICES = ({"utf-8", "latin-1", "utf-16"}, {"big", "little"}, {">", "<"}, {",", ";", "|", ":", "\t"})


def _with_other_settings(serde: Serde[Any], samples: list[Any]) -> Iterator[tuple[str, Serde[Any]]]:
    """Yield serdes made as this one but with one other number, switch or sign."""
    kind = type(serde)
    known: dict[str, Any] = {}
    for name, parameter in signature(kind).parameters.items():
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD, Parameter.POSITIONAL_ONLY):
            continue
        attribute = next((each for each in (name, f"_{name}") if hasattr(serde, each)), None)
        if attribute is None and parameter.default is Parameter.empty:
            return
        known[name] = getattr(serde, attribute) if attribute else parameter.default
    for name, value in known.items():
        for setting in _other_values(value):
            try:
                same, other = kind(**known), kind(**{**known, name: setting})
                if any(same.serialize(sample) != serde.serialize(sample) for sample in samples):
                    return
            except Exception:
                continue
            yield f"{kind.__name__} with {name}={setting!r} in place of {value!r}", other


def _other_values(value: Any) -> list[Any]:
    if type(value) is bool:
        return [not value]
    if type(value) in (int, float):
        return [value + 1, value * 2 + 3, value - 1]
    return [each for group in _CHOICES if value in group for each in group - {value}] if type(value) is str else []
