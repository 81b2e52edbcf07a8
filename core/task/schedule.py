"""One schedule of a node: its callback, its due time, and the text in which it is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..clock import PunctuationType, Punctuator, Times
from ..errors import ConfigError
from ..support.callbacks import check_called_with, check_plain

TIMES_INTERVAL_MS = 60_000
"""The interval of a schedule with `Times`: so long it is held at most (see Punctuators)."""
_KINDS = {kind.value[0]: kind for kind in PunctuationType}


class Request(NamedTuple):
    """A processor's schedule: `due` and `interval` in ms, and how a re-opened task finds the callback again.

    `key` is the name that the schedule was given, the name of the processor's method with a dot before it, or "" for
    another callback. `method` is the method's name, if the callback is one. `times`: when it is due, if that is not
    at multiples of an interval; the interval is `TIMES_INTERVAL_MS` then.
    """

    node: str
    key: str
    method: str | None
    kind: PunctuationType
    interval: int
    due: int
    punctuator: Punctuator
    times: Times | None = None


def _do_nothing(now: int) -> None:
    """Do nothing: the placeholder of a schedule without a callback yet."""


class Schedule:
    """One schedule of a node, as `schedule` returns it. `on_cancel` is called with it when it is cancelled.

    If `init` schedules the callback of a cancelled schedule again, it gets the same object. So the handle of `init`
    stays valid, also in a re-opened task.
    """

    __slots__ = (
        "_on_cancel", "node", "key", "method", "kind", "interval", "due", "punctuator", "order", "cancelled",
        "from_init", "is_kept", "waits", "times",
    )  # fmt: skip

    def __init__(self, on_cancel: Callable[[Schedule], None], node: str, key: str) -> None:
        self._on_cancel = on_cancel
        self.node = node
        self.key = key
        self.method: str | None = None
        self.kind = PunctuationType.STREAM_TIME
        self.interval = 1
        self.due = 0
        self.times: Times | None = None
        self.punctuator: Punctuator = _do_nothing
        self.order = (0, 0)
        """Rank among schedules due at the same time; the lowest fires first. The first number is 0 for schedules made
        only by `init`.
        """
        self.cancelled = False
        self.from_init = False
        self.is_kept = False
        """The last commit saved it, so `init` cannot change it."""
        self.waits = False
        """It is due by `Progress.front`, not by the wall clock itself."""

    def cancel(self) -> None:
        """Never fire again; idempotent."""
        self._on_cancel(self)

    def set(self, request: Request, order: tuple[int, int]) -> None:
        """Make it a live schedule with these values."""
        self.kind, self.interval, self.due = request.kind, request.interval, request.due
        self.punctuator, self.method, self.times = request.punctuator, request.method, request.times
        self.order, self.cancelled = order, False

    def pass_by(self, now: int) -> None:
        """Set the due time to the next one after `now` (ms)."""
        if self.times is None:
            self.due += ((now - self.due) // self.interval + 1) * self.interval
        else:
            self.due = next_time(self.node, self.times, now)

    def to_text(self, rank: int, least: int) -> str:
        """Return its saved form: clock and due time (at least `least`).

        One that was made after `init` also has its interval, its rank among those, and its method if the key does not
        name it.
        """
        text = f"{self.kind.value[0]}{max(self.due, least)}"
        if self.order[0] == 0:
            return text
        method = f"/{self.method}" if self.method is not None and self.key != f".{self.method}" else ""
        return f"{text}/{self.interval}/{rank}{method}"


def check_request(
    node: str, punctuator: Punctuator, clock: PunctuationType, start: int | None, name: str | None
) -> None:
    """Raise ConfigError for an argument of `schedule` that is wrong."""
    if not callable(punctuator):
        hint = "; Java gives the clock first: write schedule(INTERVAL, PUNCTUATOR, CLOCK)"
        raise ConfigError(
            f"node {node!r}: the punctuator {punctuator!r} is not callable"
            + (hint if isinstance(punctuator, PunctuationType) else "")
        )
    check_plain(f"node {node!r}", "the punctuator", punctuator)
    check_called_with(f"node {node!r}", "the punctuator", punctuator, ("now",))
    if not isinstance(clock, PunctuationType):
        raise ConfigError(f"node {node!r}: clock must be STREAM_TIME or WALL_CLOCK_TIME, found {clock!r}")
    if start is not None and (not isinstance(start, int) or start < 0):
        raise ConfigError(f"node {node!r}: start is in ms since the epoch, at least 0; found {start!r}")
    if name is not None and (not isinstance(name, str) or not name or name.startswith(".")):
        raise ConfigError(
            f"node {node!r}: the name of a schedule is text that does not begin with a dot, found {name!r}"
        )


def first_due(kind: PunctuationType, interval: int, start: int | None, now: int) -> int:
    """Return when a schedule is due first (ms): at its start, or at the next aligned time after now if that is over.

    Without a start, stream time is due at once. Semantics: KIP-1146.
    """
    if start is None:
        return 0 if kind is PunctuationType.STREAM_TIME else now + interval
    return start if start >= now else start + ((now - start) // interval + 1) * interval


NEVER = 1 << 62
"""A time that no clock reaches."""


def next_time(node: str, times: Times, now: int) -> int:
    """Return when a schedule is due after `now` (ms), or NEVER. Raises ConfigError for another answer."""
    found = times.next_after(now)
    if found is None:
        return NEVER
    if type(found) is not int or found <= now:
        raise ConfigError(
            f"node {node!r}: {times!r}.next_after({now}) returned {found!r}, expected a later time in ms, or None"
        )
    return found


def method_name(processor: object, punctuator: Punctuator) -> str | None:
    """Return the name under which the processor has `punctuator` as a method; None if it has not."""
    function = getattr(punctuator, "__func__", None)
    if function is None or getattr(punctuator, "__self__", None) is not processor:
        return None
    # A name that begins with two underscores, or a decorated method, goes by another name than its function says.
    names = (name for each in type(processor).__mro__ for name, value in vars(each).items() if value is function)
    return next((name for name in names if getattr(type(processor), name) is function), None)


def is_name(key: str) -> bool:
    """Return whether a key is a name that was given to `schedule`."""
    return key != "" and not key.startswith(".")


def read_times(text: str) -> tuple[PunctuationType, int]:
    """Return the clock and the due time (ms) of a saved text without its part after the first slash."""
    return _KINDS[text[0]], int(text[1:])


def describe_callback(key: str, text: str) -> str:
    """Return, for a message, the callback of a saved schedule that was made after `init`."""
    _, _, _, *method = text.split("/", 3)
    if method or key.startswith("."):
        return f"a method {method[0] if method else key[1:]!r} of that node's processor"
    return f"a callback that that node's init gives the name {key!r}"


def too_many(node: str, count: int, size: int, most: int) -> str:
    """Return the message for a schedule that a commit has no room for: the task's take `size` bytes of `most`."""
    return (
        f"node {node!r}: one schedule too many. The {count} of its task take {size} bytes where they are saved, with "
        "the task's "
        f"positions, and there is room for {most}. Cancel what is no longer needed; or keep in a store what is to be "
        "done and when, and let one punctuator go through it"
    )
