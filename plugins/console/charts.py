"""Charts of samples as SVG elements, drawn by the server; the page's stylesheet has their colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

_WIDTH, _HEIGHT = 300.0, 70.0
_MOST_POINTS = 240
Point = tuple[int, float | None]
"""A time (ms), and the value at it; None where it is unknown."""


def chart(title: str, points: Sequence[Point], written: Callable[[float], str]) -> Markup:
    """Return a chart of values over time, from 0 up to the highest one; a gap where a value is unknown.

    `written`: how a value is written. Of many points it has the highest one of each few.
    """
    known = [value for _, value in points if value is not None]
    highest = max(known, default=0.0)
    minutes = (points[-1][0] - points[0][0]) / 60_000 if points else 0.0
    now = points[-1][1] if points else None
    text = f"{title}: not known yet"
    if known:
        said = "unknown" if now is None else written(now)
        text = f"{title}: {said} now, at most {written(highest)} in {minutes:.0f} minutes"
    lines = Markup("").join(
        Markup('<polyline class="chart-line" points="{}"/>').format(" ".join(f"{x:.1f},{y:.1f}" for x, y in part))
        for part in _parts(_thinned(points), highest)
    )
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<title>{}</title><line class="chart-base" x1="0" y1="{}" x2="{}" y2="{}"/>{}</svg>'
    ).format(f"{_WIDTH:g}", f"{_HEIGHT:g}", text, text, f"{_HEIGHT - 1:g}", f"{_WIDTH:g}", f"{_HEIGHT - 1:g}", lines)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Return the highest point of each few, so that no peak is lost."""
    few = -(-len(points) // _MOST_POINTS) or 1
    groups = [points[at : at + few] for at in range(0, len(points), few)]
    return [max(group, key=lambda point: -1.0 if point[1] is None else point[1]) for group in groups]


def _parts(points: Sequence[Point], highest: float) -> list[list[tuple[float, float]]]:
    """Return the places of points, in parts between unknown ones."""
    if not points:
        return []
    first, span = points[0][0], max(1, points[-1][0] - points[0][0])
    parts: list[list[tuple[float, float]]] = [[]]
    for at_ms, value in points:
        if value is None:
            parts.append([])
        else:
            x = (at_ms - first) / span * _WIDTH
            parts[-1].append((x, _HEIGHT - 1 - value / (highest or 1) * (_HEIGHT - 6)))
    # A line from a point to itself is not drawn.
    return [part if len(part) > 1 else [(max(0.0, x - 2), y), (max(2.0, x), y)] for part in parts for x, y in part[:1]]
