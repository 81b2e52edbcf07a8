"""The layout of a drawing: from top to bottom, as wide as a page, with a frame around each sub-topology.

Graphviz draws as well (`penstock describe --format dot`), but it is a program that is not on every machine, and a
notebook's drawing is the same on all of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from .shapes import Drawing, Shape

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

    `ports`: distance of a box's lines from its left side.
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
    """Return rows of boxes by rank; a rank that is too wide has several rows."""
    groups = [[each for each, its in enumerate(ranks) if its == rank] for rank in range(max(ranks, default=-1) + 1)]
    return [row for group in groups for row in wrapped(group, sizes, limit)]


def wrapped(group: Iterable[int], sizes: Sequence[tuple[float, float]], limit: float) -> list[list[int]]:
    """Divide boxes into rows within `limit`, with space for passing lines."""
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


HEIGHT = 28
"""Of a box, in pixels."""
PAGE = 900
"""So wide is a drawing at most, but for a name that does not fit: a page, and a notebook's cell."""
TITLE = 26
"""The height of a frame's title, at its top."""
LONGEST = 44
"""So many characters of a name are shown."""
_CHARACTER = 7.3
_MARGIN = 20
_STORE_GAP = 6


@dataclass
class Box:
    """A shape and its place. `shape` None: the frame of a sub-topology."""

    text: str
    x: float
    y: float
    width: float
    height: float = HEIGHT
    shape: Shape | None = None

    @property
    def middle(self) -> float:
        """The x at which arrows begin and end at its bottom and top."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """The y of its bottom."""
        return self.y + self.height

    def move(self, x: float, y: float) -> None:
        """Move it by so much."""
        self.x, self.y = self.x + x, self.y + y


Points = list[tuple[float, float]]


@dataclass
class _Block:
    """A unit of the layout: a topic, or a frame with its nodes, and the lines inside it.

    `port`: where the lines from outside are, on the average, from its left.
    """

    boxes: list[Box]
    width: float
    height: float
    port: float
    lines: dict[tuple[str, str], Points]

    def move(self, x: float, y: float) -> None:
        for box in self.boxes:
            box.move(x, y)
        for edge, points in self.lines.items():
            self.lines[edge] = [(a + x, b + y) for a, b in points]


@dataclass(frozen=True)
class DrawingLayout:
    """The boxes of a drawing by the id of their shapes, the frames around them, and the size of it all.

    `lines`: for an edge (from, to), the points that its line passes, both ends included.
    """

    boxes: Mapping[str, Box]
    frames: Sequence[Box]
    lines: Mapping[tuple[str, str], Points]
    width: float
    height: float


def lay_out(drawing: Drawing) -> DrawingLayout:
    """Return the places of everything in `drawing`; no two boxes overlap."""
    frames = [_frame(title, shapes, drawing) for title, shapes in drawing.groups]
    topics = [_box(topic) for topic in drawing.topics.values()]
    blocks = [*(_Block([box], box.width, box.height, box.width / 2, {}) for box in topics), *frames]
    boxes = {box.shape.id: box for block in blocks for box in block.boxes if box.shape is not None}
    home = {box.shape.id: number for number, block in enumerate(blocks) for box in block.boxes if box.shape is not None}
    outside = [(one, other) for _, one, other in drawing.edges if home[one] != home[other]]
    edges = {(home[one], home[other]) for one, other in outside}
    sizes = [(block.width, block.height) for block in blocks]
    limit = PAGE - 2 * _MARGIN
    rows = _rows_of_blocks(len(topics), sizes, edges, limit)
    layers = in_layers(sizes, [block.port for block in blocks], edges, rows, limit)
    for block, (x, y) in zip(blocks, layers.places, strict=True):
        block.move(_MARGIN + x, _MARGIN + y)
    lines = {edge: points for block in blocks for edge, points in block.lines.items()}
    width, height = layers.width + 2 * _MARGIN, layers.height + 2 * _MARGIN
    beside = 0
    for one, other in outside:
        edge = home[one], home[other]
        begin, end = (boxes[one].middle, boxes[one].bottom), (boxes[other].middle, boxes[other].y)
        if edge not in layers.bends:  # It leads back upwards.
            beside += 1
            lines[one, other] = _around(begin, end, width + 8 * beside - 10, beside)
        else:
            # Straight down inside a frame, so what bends is between the frames.
            leave, enter = (begin[0], blocks[edge[0]].boxes[0].bottom), (end[0], blocks[edge[1]].boxes[0].y)
            bends = [(_MARGIN + x, _MARGIN + y) for x, y in layers.bends[edge]]
            lines[one, other] = list(dict.fromkeys([begin, leave, *bends, enter, end]))
    return DrawingLayout(boxes, [block.boxes[0] for block in frames], lines, width + 8 * beside, height)


def _rows_of_blocks(
    topics: int, sizes: Sequence[tuple[float, float]], edges: Collection[tuple[int, int]], limit: float
) -> list[list[int]]:
    """Return the rows of blocks: the first blocks are `topics`, then frames follow.

    Frames are in the order of their numbers, but after frames that they read from, and side by side if there is space.
    A topic is above its first reader, or below its last writer.
    """
    readers = {topic: [other for one, other in edges if one == topic] for topic in range(topics)}
    writers = {topic: [one for one, other in edges if other == topic] for topic in range(topics)}
    before = {
        frame: {writer for topic in range(topics) if frame in readers[topic] for writer in writers[topic]} - {frame}
        for frame in range(topics, len(sizes))
    }
    lines: list[list[int]] = []
    row_of: dict[int, int] = {}
    while len(row_of) < len(before):
        waiting = [frame for frame in before if frame not in row_of]
        # Where frames read each other in a circle, the first one begins.
        frame = next((each for each in waiting if before[each] <= row_of.keys()), waiting[0])
        beside = wrapped([*lines[-1], frame], sizes, limit) if lines else []
        if len(beside) != 1 or before[frame] & set(lines[-1]):
            lines.append([])
        lines[-1].append(frame)
        row_of[frame] = len(lines) - 1
    between: list[list[int]] = [[] for _ in range(len(lines) + 1)]
    for topic in range(topics):
        last = max((row_of[writer] for writer in writers[topic]), default=-1)
        below = [row_of[reader] for reader in readers[topic] if row_of[reader] > last]
        first = min(row_of[reader] for reader in readers[topic]) if readers[topic] and not below else last + 1
        between[min(below) if below else first].append(topic)
    rows = wrapped(between[0], sizes, limit)
    for line, after in zip(lines, between[1:], strict=True):
        rows += [line, *wrapped(after, sizes, limit)]
    return rows


def _around(begin: tuple[float, float], end: tuple[float, float], x: float, number: int) -> Points:
    """Return the way of a line that leads back upwards: beside everything."""
    down, up = begin[1] + 5 + 3 * number, end[1] - 8 - 3 * number
    return [begin, (begin[0], down), (x, down), (x, up), (end[0], up), end]


def _frame(title: str, shapes: Sequence[Shape], drawing: Drawing) -> _Block:
    """Return a sub-topology's frame: nodes in layers, each store at the right of the first node that uses it."""
    inside = {shape.id for shape in shapes}
    edges = [each for each in drawing.edges if each[1] in inside and each[2] in inside]
    nodes = [shape for shape in shapes if shape.kind == "node"]
    owner: dict[str, str] = {}
    for kind, one, other in edges:
        if kind == "store":
            owner.setdefault(other, one)
    cells = [[_box(node), *(_box(each) for each in shapes if owner.get(each.id) == node.id)] for node in nodes]
    sizes = [_arrange(cell) for cell in cells]
    number = {node.id: place for place, node in enumerate(nodes)}
    records = [(number[one], number[other]) for kind, one, other in edges if kind == "record"]
    # A node comes after its parents, so one pass finds the longest way to each.
    ranks = [0] * len(nodes)
    for parent, child in sorted(records, key=lambda edge: edge[1]):
        ranks[child] = max(ranks[child], ranks[parent] + 1)
    ends = {number[one] for _, one, other in drawing.edges if one in number and other not in inside}
    ends -= {parent for parent, _ in records}
    ranks = [max(ranks) if place in ends else rank for place, rank in enumerate(ranks)]
    limit = PAGE - 4 * _MARGIN
    ports = [cell[0].width / 2 for cell in cells]
    layers = in_layers(sizes, ports, records, by_rank(sizes, ranks, limit), limit)
    left = max(0.0, (_width(title) - layers.width) / 2) + _MARGIN
    top = TITLE + GAP
    for cell, (x, y) in zip(cells, layers.places, strict=True):
        for box in cell:
            box.move(left + x, top + y)
    boxes = {box.shape.id: box for cell in cells for box in cell if box.shape is not None}
    lines: dict[tuple[str, str], Points] = {}
    for kind, one, other in edges:
        begin, end = boxes[one], boxes[other]
        if kind == "record":
            bends = [(left + x, top + y) for x, y in layers.bends[number[one], number[other]]]
            lines[one, other] = [(begin.middle, begin.bottom), *bends, (end.middle, end.y)]
        else:
            lines[one, other] = _to_store(begin, end, is_its_own=owner[other] == one)
    width = max(layers.width, _width(title)) + 2 * _MARGIN
    height = top + layers.height + GAP
    port = fmean(boxes[node.id].middle for node in nodes)
    return _Block([Box(title, 0, 0, width, height), *boxes.values()], width, height, port, lines)


def _arrange(cell: Sequence[Box]) -> tuple[float, float]:
    """Put the stores of a node at its right, under each other; return the size of them all."""
    node, *stores = cell
    for place, store in enumerate(stores):
        store.move(node.width + GAP, place * (HEIGHT + _STORE_GAP))
    return max(box.x + box.width for box in cell), max(box.bottom for box in cell)


def _to_store(begin: Box, end: Box, *, is_its_own: bool) -> Points:
    """Return the line from a node to its store, at its right or in another layer."""
    if is_its_own:
        right, y = begin.x + begin.width, begin.y + HEIGHT / 2
        return [(right, y), (right + GAP / 2, y), (right + GAP / 2, end.y + HEIGHT / 2), (end.x, end.y + HEIGHT / 2)]
    if end.y > begin.y:
        return [(begin.middle, begin.bottom), (end.middle, end.y)]
    if end.y < begin.y:
        return [(begin.middle, begin.y), (end.middle, end.bottom)]
    return [(begin.middle, begin.bottom), (begin.middle, begin.bottom + 9), (end.middle, begin.bottom + 9),
            (end.middle, end.bottom)]  # fmt: skip


def _box(shape: Shape) -> Box:
    text = shape.text if len(shape.text) <= LONGEST else f"{shape.text[: LONGEST - 1]}…"
    return Box(text, 0, 0, _width(text), shape=shape)


def _width(text: str) -> float:
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return round((len(text) + wide) * _CHARACTER + 24)
