"""How times, lengths and numbers are written."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import HISTOGRAM_BOUNDS
from penstock.plugins.engine.program.run_status import RunStatus, TaskStatus

_BARS = "▁▂▃▄▅▆▇█"
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def age(at_ms: int, now_ms: int) -> float:
    """Return seconds since a time of the driver's clock, which may differ from ours."""
    return max(0, now_ms - at_ms) / 1000


def ago(at_ms: int, now_ms: int) -> str:
    """Return the length of time since a time of the driver's clock."""
    return length(age(at_ms, now_ms))


def length(seconds: float) -> str:
    """Return a length of time in its two largest units.

    >>> length(4.2), length(3725), length(200_000)
    ('4s', '1h2m', '2d7h')
    """
    whole = int(seconds)
    for number, (name, size) in enumerate(_UNITS):
        if whole >= size:
            rest = whole % size // _UNITS[number + 1][1] if name != "s" else 0
            return f"{whole // size}{name}" + (f"{rest}{_UNITS[number + 1][0]}" if rest else "")
    return "0s"


def per_second(rate: float | None) -> str:
    """Return a rate; "-" for an unknown one.

    >>> per_second(1234.5), per_second(3.21), per_second(0.0), per_second(None)
    ('1,234/s', '3.2/s', '0/s', '-')
    """
    if rate is None:
        return "-"
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{rate:.1f}/s"


def latency(seconds: float | None) -> str:
    """Return a latency, which is a short time as a rule; "-" for an unknown one.

    Longer ones than the last bound of histograms are not told apart: they count as long as that.

    >>> latency(0.0734), latency(2.345), latency(300), latency(3600), latency(None)
    ('73 ms', '2.3 s', '5m', 'over 1h', '-')
    """
    if seconds is None:
        return "-"
    if seconds >= HISTOGRAM_BOUNDS[-1]:
        return f"over {length(HISTOGRAM_BOUNDS[-1])}"
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else length(seconds)


def size(number: float) -> str:
    """Return a number of bytes with its unit.

    >>> size(512), size(3_400_000)
    ('512 B', '3.2 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:,.1f} {unit}"
        number /= 1024
    raise AssertionError


def opening(task: TaskStatus) -> str:
    """Return the progress of a task's opening."""
    restoring = task.restoring
    if restoring is None:
        return "opening"
    share = "" if restoring.share is None else f" {restoring.share:.0%}"
    left = "" if restoring.seconds_left is None else f", {length(restoring.seconds_left)} to go"
    return f"restoring{share}, {restoring.entries_per_second:,.0f}/s{left}"


def visiting(run: RunStatus) -> str:
    """Return the progress of a run's unfinished visits; "" if there are none."""
    return ", ".join(
        f"visit {each.visitor}: {each.done} of {each.tasks} tasks, {each.visited:,} entries"
        for each in run.visits
        if each.state == "not over"
    )


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the last values as a line of bars; a gap for an unknown one.

    >>> sparkline([1, 2, None, 4, 0], 4)
    '▅ █▁'
    """
    shown = list(values)[-width:]
    highest = max((each for each in shown if each is not None), default=0) or 1
    return "".join(" " if each is None else _BARS[round(each / highest * (len(_BARS) - 1))] for each in shown)
