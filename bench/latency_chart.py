"""`python -m bench.latency_chart RESULTS CHART`: draw what `python -m bench latency --json RESULTS` measured, as SVG.

A panel for each case, with a line for each side over the percentiles; the scale of milliseconds is logarithmic.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .latency import BY_ITSELF, DIRECTORY, OURS, SIDES, THEIRS
from .result import PERCENTILES

WIDTH, HEIGHT, COLUMNS = 360, 240, 2
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 36, 28
"""The margins of a panel."""
LEGEND = 28
COLOURS = {OURS: "#0b6e4f", DIRECTORY: "#7fb69a", BY_ITSELF: "#2b5d9b", THEIRS: "#c2571a"}
_LABELS = {"p999": "p99.9"}


def chart(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the SVG. Raises ValueError when nothing of it can be drawn."""
    rows = [row for row in rows if any(_values(row, side) for side in SIDES)]
    if not rows:
        raise ValueError("no row has p50_ms to max_ms: expected what `python -m bench latency --json FILE` wrote")
    height = LEGEND + HEIGHT * math.ceil(len(rows) / COLUMNS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * COLUMNS} {height}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        f'<rect width="{WIDTH * COLUMNS}" height="{height}" fill="#fff"/>',
        *_legend([side for side in SIDES if any(_values(row, side) for row in rows)]),
    ]
    for number, row in enumerate(rows):
        x, y = WIDTH * (number % COLUMNS), LEGEND + HEIGHT * (number // COLUMNS)
        lines += [f'<g transform="translate({x} {y})">', *_panel(row), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _values(row: Mapping[str, Any], side: str) -> list[float]:
    """Return a side's milliseconds at each percentile; empty if it was not measured."""
    found = [row.get(f"{side}{each}_ms") for each in PERCENTILES]
    return [float(each) for each in found if each is not None] if None not in found else []


def _legend(sides: Sequence[str]) -> Iterator[str]:
    for number, side in enumerate(sides):
        x = LEFT + number * 180
        yield f'<circle cx="{x}" cy="18" r="4" fill="{COLOURS[side]}"/>'
        yield f'<text x="{x + 10}" y="22" font-size="12">{escape(SIDES[side])}</text>'


def _panel(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield one case: its title, the grid, and the sides, ours on top."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    measured = [max(value, 0.01) for side in SIDES for value in _values(row, side)]
    lowest = 10.0 ** math.floor(math.log10(min(measured)))
    highest = 10.0 ** math.ceil(math.log10(max(measured) * 1.01))
    decades = math.log10(highest / lowest)

    def y(value: float) -> float:
        return round(bottom - (bottom - TOP) * math.log10(max(value, lowest) / lowest) / decades, 1)

    places = [LEFT + (right - LEFT) * (each + 0.5) / len(PERCENTILES) for each in range(len(PERCENTILES))]
    title = str(row["name"]).removeprefix("latency-").replace("-", " ")
    yield f'<text x="{LEFT}" y="{TOP - 14}" font-size="13" font-weight="bold">{escape(title)}</text>'
    for power in range(round(decades) + 1):
        value = lowest * 10**power
        yield f'<line x1="{LEFT}" x2="{right}" y1="{y(value)}" y2="{y(value)}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:,g} ms</text>'
    for place, name in zip(places, PERCENTILES, strict=True):
        yield f'<text x="{place:.0f}" y="{bottom + 17}" text-anchor="middle">{_LABELS.get(name, name)}</text>'
    for side in reversed([each for each in SIDES if _values(row, each)]):
        points = [(round(place), y(value)) for place, value in zip(places, _values(row, side), strict=True)]
        colour = COLOURS[side]
        yield f'<polyline points="{" ".join(f"{a},{b}" for a, b in points)}" fill="none" stroke="{colour}"/>'
        for (a, b), value in zip(points, _values(row, side), strict=True):
            yield f'<circle cx="{a}" cy="{b}" r="3.5" fill="{colour}"><title>{value:g} ms</title></circle>'


def main() -> None:
    """Draw one file."""
    results, target = map(Path, sys.argv[1:])
    target.write_text(chart(json.loads(results.read_text())))


if __name__ == "__main__":
    main()
