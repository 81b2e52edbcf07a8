"""Layers: boxes of any size in rows from top to bottom, and lines between them that pass no box.

The method is that of Sugiyama: dummies where a line passes a row, an order in each row by the barycentres of the
neighbours, and then places as near to them as there is room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

GAP = 18
"""Between two boxes of a row."""
_LINE_GAP = 8
"""Beside a line that passes a row."""
_BETWEEN_ROWS = 34
_FOR_LINES = 24
"""So much of a row is for lines that pass it."""
_SWEEPS = 4


@dataclass
class _Cell:
    """A box, or a dummy (`of` None) that keeps room for a line through a row. `port`: where its lines are, from `x`."""

    of: int | None
    width: float
    height: float
    port: float
    x: float = 0
    above: list[_Cell] = field(default_factory=list)
    below: list[_Cell] = field(default_factory=list)

    @property
    def middle(self) -> float:
        return self.x + self.port


@dataclass(frozen=True)
class Layers:
    """The places of boxes by number, and for an edge (from, to) the points that its line passes on the way.

    `bends` lacks the edges that lead to the same row or upwards. `width` and `height` are those of it all.
    """

    places: Sequence[tuple[float, float]]
    bends: Mapping[tuple[int, int], Sequence[tuple[float, float]]]
    width: float
    height: float


def in_layers(
    sizes: Sequence[tuple[float, float]],
    ports: Sequence[float],
    edges: Iterable[tuple[int, int]],
    rows: Sequence[Sequence[int]],
    limit: float,
) -> Layers:
    """Return the places of boxes of these sizes, which are in these rows, as far as there is room within `limit`.

    `ports`: how far from the left of each box its lines are.
    """
    cells = [_Cell(number, *size, port) for number, (size, port) in enumerate(zip(sizes, ports, strict=True))]
    row_of = {number: place for place, row in enumerate(rows) for number in row}
    filled = [[cells[number] for number in row] for row in rows]
    chains: dict[tuple[int, int], list[tuple[int, _Cell]]] = {}
    for one, other in sorted({each for each in edges if row_of[each[0]] < row_of[each[1]]}):
        at, chain = cells[one], []
        for place in range(row_of[one] + 1, row_of[other]):
            dummy = _Cell(None, 2, 0, 1)
            filled[place].append(dummy)
            chain.append((place, dummy))
            at.below.append(dummy)
            dummy.above.append(at)
            at = dummy
        at.below.append(cells[other])
        cells[other].above.append(at)
        chains[one, other] = chain
    _place(filled, limit)
    left = min((cell.x for row in filled for cell in row), default=0)
    heights = [max(cell.height for cell in row) for row in filled]
    tops = [sum(heights[:place]) + place * _BETWEEN_ROWS for place in range(len(filled))]
    bends: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for edge, chain in chains.items():
        passed = [(dummy.middle - left, tops[place], heights[place]) for place, dummy in chain]
        bends[edge] = [point for x, y, height in passed for point in ((x, y), (x, y + height))]
    return Layers(
        [(cell.x - left, tops[row_of[number]]) for number, cell in enumerate(cells)],
        bends,
        max((cell.x + cell.width for row in filled for cell in row), default=0) - left,
        tops[-1] + heights[-1] if filled else 0,
    )


def by_rank(sizes: Sequence[tuple[float, float]], ranks: Sequence[int], limit: float) -> list[list[int]]:
    """Return rows of boxes: those of a rank, or as many of them as there is room for."""
    groups = [[each for each, its in enumerate(ranks) if its == rank] for rank in range(max(ranks, default=-1) + 1)]
    return [row for group in groups for row in wrapped(group, sizes, limit)]


def wrapped(group: Iterable[int], sizes: Sequence[tuple[float, float]], limit: float) -> list[list[int]]:
    """Return boxes in as many rows as they need, with room for lines that pass."""
    rows: list[list[int]] = []
    taken = limit
    for number in group:
        width = sizes[number][0]
        if not rows or taken + GAP + width > limit - _FOR_LINES:
            rows.append([])
            taken = -GAP
        rows[-1].append(number)
        taken += GAP + width
    return rows


def _place(rows: Sequence[list[_Cell]], limit: float) -> None:
    """Order the cells of each row and give them their `x`."""
    for row in rows:
        _pack(row, limit)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        for row in rows if downwards else rows[::-1]:
            wanted = {}
            for cell in row:
                near = cell.above if downwards else cell.below
                wanted[id(cell)] = fmean(each.middle for each in near) if near else cell.middle
            row.sort(key=lambda cell: wanted[id(cell)])
            _pack(row, limit, wanted)
    for row in [*rows, *rows[::-1], *rows]:
        wanted = {}
        for cell in row:
            near = [*cell.above, *cell.below]
            wanted[id(cell)] = fmean(each.middle for each in near) if near else cell.middle
        _pack(row, limit, wanted)


def _pack(row: Sequence[_Cell], limit: float, wanted: Mapping[int, float] | None = None) -> None:
    """Put the cells of a row beside each other in their order, each as near to its wanted middle as there is room."""
    free = 0.0
    for cell in row:
        at = free if wanted is None else wanted[id(cell)] - cell.port
        cell.x = max(free, at)
        free = cell.x + cell.width + (GAP if cell.of is not None else _LINE_GAP)
    # What was pushed too far to the right goes back, as far as its neighbours let it.
    free = limit
    for cell in reversed(row):
        cell.x = max(0.0, min(cell.x, free - cell.width))
        free = cell.x - (GAP if cell.of is not None else _LINE_GAP)
    free = 0.0
    for cell in row:
        cell.x = max(cell.x, free)
        free = cell.x + cell.width + (GAP if cell.of is not None else _LINE_GAP)
