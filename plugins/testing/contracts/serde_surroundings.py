"""The part of `SerdeContract` about what is around a serde: time zone, decimal context, threads, memory, settings."""

from __future__ import annotations

import decimal
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, chdir, contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from inspect import Parameter, signature
from typing import Any

import pytest

from penstock import Serde, SerdeError

from .expectations import expect_no_descriptors, shown
from .serde_ends import reads
from .serde_tests import SerdeTests
from .surroundings import MONDAY_SECONDS, MachineClock, code_beside

_CACHED = 3_000
"""So many values may be remembered."""


class SurroundingsTests(SerdeTests):
    """Bytes and values depend on the value and the serde's settings, on nothing else."""

    def test_surroundings_change_nothing(self) -> None:
        """Another host has another time zone; a program sets Python's decimal context, a directory, a thread."""
        serde, values = self.made(), self._near()
        first, form = [self._seen(serde, value) for value in values], serde.written_form()
        for where, surroundings in _SURROUNDINGS.items():
            found = _elsewhere(surroundings, lambda: self._again(serde, values))
            assert not isinstance(found, Exception), f"where {where}, it fails: {found!r}"
            for other, seen in found:
                assert other == form, f"written_form is {form!r}, and {other!r} where {where}"
                self._check_same(values, first, seen, f"where {where}")

    def test_the_machines_clock_changes_nothing(self) -> None:
        """Hosts' clocks differ, and what was saved is read years later."""
        serde, values = self.made(), self._near()
        first = [self._seen(serde, value) for value in values]
        inner = [each for each in getattr(serde, "__dict__", {}).values() if isinstance(each, Serde)]
        clock = MachineClock(0)
        with clock.shown(code_beside([type(each) for each in (serde, *inner)])):
            for hours in (5, 22, 40, *(24 * 365 * years for years in (0.3, 9, 47, -23, -47))):
                clock.set(MONDAY_SECONDS + 3_600 * hours)
                serde = self.made()
                seen = [self._seen(serde, value) for value in values]
                self._check_same(values, first, seen, "at another time by the machine's clock")

    def test_it_frees_what_it_was_given(self) -> None:
        """A task writes and reads for months: memory and descriptors do not grow with the values."""
        serde = self.made()
        value = next((each for each in self._samples(20) if numbered(each, 0) is not None), None)
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
        """A form that looks alike is another one's."""
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
        return [*self._samples(25), *(each for values in self._neighbourhoods() for each in values)]

    def _seen(self, serde: Serde[Any], value: Any) -> tuple[Any, Any, Any]:
        """Return the bytes of a value, its text form, and what is read; the class of the error for what is refused."""
        try:
            written = serde.serialize(value)
        except Exception:
            return SerdeError, None, None
        try:
            text = serde.to_json(value)
        except Exception as error:
            text = type(error)
        return written, text, reads(serde, written)

    def _again(self, serde: Serde[Any], values: list[Any]) -> list[tuple[str, list[Any]]]:
        return [(each.written_form(), [self._seen(each, value) for value in values]) for each in (serde, self.made())]

    def _check_same(self, values: list[Any], first: list[Any], seen: list[Any], where: str) -> None:
        for value, (written, text, read), (now, as_text, then) in zip(values, first, seen, strict=True):
            assert (now, as_text) == (written, text), (
                f"{shown(value)} is {shown((written, text))}, and {shown((now, as_text))} {where}"
            )
            assert self._are_alike(then, read), (
                f"{shown(written)} is read as {shown(read)}, and as {shown(then)} {where}"
            )


@contextmanager
def _time_zone(name: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


@contextmanager
def _other_directory() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        yield


@contextmanager
def _nothing() -> Iterator[None]:
    yield


_SURROUNDINGS: Mapping[str, Callable[[], AbstractContextManager[Any]] | None] = {
    "the time zone is Pacific/Kiritimati": lambda: _time_zone("Pacific/Kiritimati"),
    "the time zone is America/St_Johns": lambda: _time_zone("America/St_Johns"),
    "decimals have three digits": lambda: decimal.localcontext(decimal.Context(3, decimal.ROUND_UP)),
    "the directory is another one": _other_directory,
    "another thread calls": None,
}


def _elsewhere(surroundings: Callable[[], AbstractContextManager[Any]] | None, act: Callable[[], Any]) -> Any:
    """Return what `act` returns, or its error."""
    try:
        if surroundings is None:
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(act).result()
        with surroundings():
            return act()
    except Exception as error:
        return error


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
    """Yield serdes that are made as this one is but for one number, switch or sign."""
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
                if any(same.serialize(each) != serde.serialize(each) for each in samples):
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
