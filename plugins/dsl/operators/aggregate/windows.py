"""Windows: the pieces of time in which records are aggregated, as values."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from functools import partial
from types import MethodType
from typing import Any

from penstock import Duration, TopologyError, duration_ms

from ...missing_verbs import WindowsType

MAX_TIME = 2**63 - 1
"""The end of a window that never ends (ms)."""

Window = tuple[int, int]
"""Start and end of a window, in ms since the epoch. The end is the first ms after it."""


class TimeWindows(metaclass=WindowsType):
    """Windows that follow from timestamps alone. Subclass it for windows of your own; instances must be picklable.

    `grace_ms`: a window takes late records until stream time has reached its end and this much more.
    """

    grace_ms: int

    @property
    def form(self) -> str:
        """Which windows these are, in words; it is saved with a store, which refuses windows of another form.

        The default is the class's full name and its attributes, without `grace_ms`: numbers, texts, times, time zones,
        and what is made of them, also as attributes of other objects. Override it if an attribute does not change the
        windows (a cache of them, for instance), or if something else does.
        """
        given = {name: value for name, value in _attributes(self) if name != "grace_ms"}
        shown = ", ".join(f"{name}={_shown(value, (self,))}" for name, value in given.items())
        return f"windows of {type(self).__module__}.{type(self).__qualname__}({shown})"

    @property
    @abstractmethod
    def size_ms(self) -> int:
        """How long a window is; of windows of different lengths, the longest."""

    @abstractmethod
    def windows_for(self, timestamp: int) -> Sequence[Window]:
        """Return (start, end) of each window that a record at `timestamp` (ms) belongs to, the earliest start first.

        A window contains its start: `windows_for(start)` has it, too. At most one window begins at a time, at 0 or
        later.
        """

    def compile(self) -> Callable[[int], Sequence[Window]]:
        """Return `windows_for`, or a function that does the same faster.

        This one raises TopologyError for windows that are not as `windows_for` says: a record would count twice in two
        that begin at one time.
        """
        given = self.windows_for

        def windows_for(timestamp: int) -> Sequence[Window]:
            windows, before = given(timestamp), -1
            for start, end in windows:
                if not before < start <= timestamp < end:
                    raise TopologyError(
                        f"{type(self).__name__}.windows_for({timestamp}) returned {windows!r}, expected (start, end) "
                        "of windows that contain that time, the earliest start first, and at most one for each start"
                    )
                before = start
            return windows

        return windows_for

    @property
    def are_of_one_length(self) -> bool:
        """Whether each window ends `size_ms` after its start; else `end_of` says where it ends."""
        return False

    def end_of(self, start: int) -> int | None:
        """Return the end of the window that begins at `start`; None if none does."""
        return dict(self.windows_for(start)).get(start)

    @property
    def retention_ms(self) -> int:
        """How long a store must keep windows, counted back from the newest start."""
        return min(self.size_ms + self.grace_ms, MAX_TIME)


def _attributes(owner: object) -> list[tuple[str, Any]]:
    """Return the attributes of an object by name, those in slots included."""
    slots = [name for kind in type(owner).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    names = {*getattr(owner, "__dict__", ()), *(name for name in slots if hasattr(owner, name))}
    return [(name, getattr(owner, name)) for name in sorted(names - {"__dict__", "__weakref__"})]


def _names(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


_PLAIN = (bool, int, float, str, bytes, Decimal, date, time, timedelta, tzinfo, Enum, range, slice, re.Pattern)
"""Types whose values show themselves alike in every process."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _shown(value: Any, above: tuple[object, ...]) -> str:
    """Return a text that is the same for equal attributes in every process. `above`: what the value is a part of."""
    # A time zone of one's own may show its address only.
    if value is None or (isinstance(value, _PLAIN) and type(value).__repr__ is not object.__repr__):
        return repr(value)
    if any(each is value for each in above):
        return "..."
    shown, kind = partial(_shown, above=(*above, value)), type(value).__name__
    if isinstance(value, (tuple, list)):
        return f"{kind}({', '.join(map(shown, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{kind}({', '.join(sorted(map(shown, value)))})"
    if isinstance(value, Mapping):
        return f"{kind}({', '.join(sorted(f'{shown(key)}: {shown(each)}' for key, each in value.items()))})"
    if isinstance(value, (partial, MethodType)):
        parts = (value.__func__, value.__self__) if isinstance(value, MethodType) else value.__reduce__()[2][:3]
        return f"{kind}({', '.join(map(shown, parts))})"
    if callable(value) and hasattr(value, "__qualname__"):  # a function or a class, also in a cache
        return str(value.__qualname__)
    attributes = ", ".join(f"{name}={shown(each)}" for name, each in _attributes(value))
    return f"{type(value).__module__}.{type(value).__qualname__}({attributes or _content(value, shown)})"


def _content(value: Any, shown: Callable[[object], str]) -> str:
    """Return the content of a value that is not in its attributes: of an object of a C class, such as an array."""
    if hasattr(value, "tolist"):
        return shown(value.tolist())
    if isinstance(value, Sequence):
        return ", ".join(map(shown, value))
    text: object = type(value).__repr__
    return "" if text is object.__repr__ else _ADDRESS.sub("", repr(value))


class _OurWindows(TimeWindows):
    """Windows of this module; a subclass with a `windows_for` of its own has windows of its own."""

    @property
    def are_of_one_length(self) -> bool:
        return type(self).windows_for.__module__ == __name__

    def compile(self) -> Callable[[int], Sequence[Window]]:
        return self.windows_for if self.are_of_one_length else super().compile()


@dataclass(frozen=True)
class TumblingWindows(_OurWindows):
    """Windows of equal length, one after the other."""

    length_ms: int
    grace_ms: int

    @property
    def form(self) -> str:
        return f"tumbling windows of {self.length_ms} ms"

    @property
    def size_ms(self) -> int:
        return self.length_ms

    def windows_for(self, timestamp: int) -> Sequence[Window]:
        """Return the one window that a record belongs to."""
        start = timestamp - timestamp % self.length_ms
        return ((start, start + self.length_ms),)

    def end_of(self, start: int) -> int | None:
        if not self.are_of_one_length:
            return super().end_of(start)
        return None if start % self.length_ms else start + self.length_ms


@dataclass(frozen=True)
class HoppingWindows(_OurWindows):
    """Windows of equal length that begin at equal distances, and overlap."""

    length_ms: int
    advance_ms: int
    grace_ms: int

    @property
    def form(self) -> str:
        if self.advance_ms == self.length_ms:
            return TumblingWindows(self.length_ms, self.grace_ms).form
        return f"hopping windows of {self.length_ms} ms every {self.advance_ms} ms"

    @property
    def size_ms(self) -> int:
        return self.length_ms

    def windows_for(self, timestamp: int) -> Sequence[Window]:
        """Return the windows that a record belongs to."""
        length, advance = self.length_ms, self.advance_ms
        first = max(0, timestamp - length + advance) // advance * advance
        return [(start, start + length) for start in range(first, timestamp + 1, advance)]

    def end_of(self, start: int) -> int | None:
        if not self.are_of_one_length:
            return super().end_of(start)
        return None if start % self.advance_ms else start + self.length_ms


@dataclass(frozen=True)
class UnlimitedWindows(_OurWindows):
    """One window that never ends."""

    start_ms: int
    grace_ms: int = 0

    @property
    def form(self) -> str:
        return f"one window from {self.start_ms} ms on"

    @property
    def size_ms(self) -> int:
        """More than there is time."""
        return MAX_TIME

    def windows_for(self, timestamp: int) -> Sequence[Window]:
        """Return the window, or nothing for a record before it."""
        return ((self.start_ms, MAX_TIME),) if timestamp >= self.start_ms else ()


@dataclass(frozen=True)
class SlidingWindows(metaclass=WindowsType):
    """For each key, a window for each different set of records that are at most `difference_ms` apart."""

    difference_ms: int
    grace_ms: int

    @property
    def form(self) -> str:
        """Which windows these are, in words."""
        return f"sliding windows of {self.difference_ms} ms"

    def end_of(self, start: int) -> int:
        """Return the last ms of the window that begins at `start`."""
        return start + self.difference_ms

    @property
    def retention_ms(self) -> int:
        """How long a store must keep windows at least, counted back from the newest start."""
        return 2 * self.difference_ms + self.grace_ms

    @property
    def kept_ms(self) -> int:
        """How long it keeps them: the last window behind a record that closes is made of the one before it."""
        return self.retention_ms + 2


@dataclass(frozen=True)
class SessionWindows(metaclass=WindowsType):
    """For each key, sessions: records that are at most `gap_ms` apart."""

    gap_ms: int
    grace_ms: int

    @property
    def form(self) -> str:
        """Which windows these are, in words."""
        return f"sessions with a gap of {self.gap_ms} ms"

    @property
    def retention_ms(self) -> int:
        """How long a store must keep sessions at least, counted back from the newest end."""
        return self.gap_ms + self.grace_ms

    @property
    def kept_ms(self) -> int:
        """How long it keeps them: a session takes records until this is over, and one that closes is sent then."""
        return self.retention_ms + 1


def tumbling(size: Duration, *, grace: Duration | None = None) -> TumblingWindows:
    """Return windows of length `size`, one after the other; they begin at multiples of `size` since the epoch.

    `grace` is how long after its end a window takes late records, and must be said; "0s" is not at all.

    ::

        time     0         5         10        15
        windows  [   1    )[   2    )[   3    )      tumbling("5m", grace="0s")
        records   a     b   c                        a and b are in 1, c in 2

    >>> tumbling("5m", grace="1m").windows_for(301_000)
    ((300000, 600000),)
    """
    return TumblingWindows(_length("tumbling", "size", size), grace_of('tumbling("5m", ', grace))


def hopping(size: Duration, every: Duration, *, grace: Duration | None = None) -> HoppingWindows:
    """Return windows of length `size`, of which one begins at each multiple of `every` since the epoch.

    `every` is at most `size`; the windows overlap, and a record is in each that its time is in. `grace`: see
    `tumbling`.

    ::

        time     0         5         10        15
        windows  [        1         )                hopping("10m", every="5m", grace="0s")
                           [        2         )
        records      a         b                     a is in 1, b in 1 and 2

    >>> hopping("10s", "5s", grace="0s").windows_for(7_000)
    [(0, 10000), (5000, 15000)]
    """
    length, advance = _length("hopping", "size", size), _length("hopping", "every", every)
    if advance > length:
        raise TopologyError(f"hopping: every={every!r} is longer than the windows ({size!r}), which leaves gaps")
    return HoppingWindows(length, advance, grace_of('hopping("10m", every="1m", ', grace))


def sliding(difference: Duration, *, grace: Duration | None = None) -> SlidingWindows:
    """Return windows that slide over the records of each key: two records are in one if at most `difference` apart.

    A window begins or ends at a record, and both ends belong to it. The difference is at least 1 ms. `grace`: see
    `tumbling`.

    ::

        time     0    1    2    3    4    5    6
        records       a         b         c          of one key, sliding("2m", grace="0s")
        windows  ----[a]   |    |    |    |          a alone, ends at a
                      [a        b]   |    |          ends at b, begins at a
                           ~[b]  ...                 begins after a: b alone, and so on

    >>> sliding("5m", grace="1m").difference_ms
    300000
    """
    length = _length("sliding", "difference", difference)
    return SlidingWindows(length, grace_of('sliding("5m", ', grace))


def sessions(gap: Duration, *, grace: Duration | None = None) -> SessionWindows:
    """Return sessions: records of a key are in one as long as no more than `gap` lies between them.

    A session goes from its first to its last record. A record between two sessions can merge them. `grace`: see
    `tumbling`.

    ::

        time     0    1    2    3    4    5    6
        records       a    b                   c     of one key, sessions(gap="2m", grace="0s")
        sessions      [    ]                   []    a and b, c alone

    >>> sessions("30m", grace="0s").gap_ms
    1800000
    """
    length = _length("sessions", "gap", gap, least=0)
    return SessionWindows(length, grace_of('sessions(gap="30m", ', grace))


def unlimited(*, start: int = 0) -> UnlimitedWindows:
    """Return one window that begins at `start` (ms since the epoch) and never ends. Earlier records are left out.

    >>> unlimited().windows_for(5)
    ((0, 9223372036854775807),)
    """
    if type(start) is not int or start < 0:
        raise TopologyError(f"unlimited: start is a time in ms since the epoch, found {start!r}")
    return UnlimitedWindows(start)


def _length(verb: str, what: str, given: Duration, *, least: int = 1) -> int:
    length = duration_ms(given, f"{verb}: {what}", may_be_negative=True)
    if length < least:
        raise TopologyError(f"{verb}: {what} is at least {least} ms, found {given!r}")
    return length


def grace_of(so_far: str, given: Duration | None) -> int:
    """Return the grace in ms. `so_far`: the call that lacks one, for the message. Raises TopologyError, ConfigError."""
    if given is None:
        verb = so_far.partition("(")[0]
        raise TopologyError(
            f'{verb}: say how long after its end a window takes late records: {so_far}grace="1m"), or grace="0s" if '
            "it takes none"
        )
    return duration_ms(given, f"{so_far.partition('(')[0]}: grace")
