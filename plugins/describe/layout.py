"""Where the shapes of a drawing go: in layers from left to right, sources on the left and sinks on the right."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from .shapes import Drawing, Shape

HEIGHT = 28
"""Of a box, in pixels."""
_CHARACTER = 7.3
_MARGIN = 24
_BETWEEN_COLUMNS = 56
_BETWEEN_ROWS = 14
_TITLE = 24
INDENT = 18
"""How far stores are to the right of their processor, below which they are."""
LONGEST = 48
"""So many characters of a name are shown."""


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
        """Where arrows end at its sides."""
        return self.y + self.height / 2

    def move(self, x: float, y: float) -> None:
        """Move it by so much."""
        self.x, self.y = self.x + x, self.y + y


@dataclass
class _Block:
    """A unit of the layout: a topic, or a frame with its nodes."""

    boxes: list[Box]
    width: float = 0
    height: float = 0
    ports: dict[str, Box] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.width = max(box.x + box.width for box in self.boxes)
        self.height = max(box.y + box.height for box in self.boxes)
        self.ports = {box.shape.id: box for box in self.boxes if box.shape is not None}

    def move(self, x: float, y: float) -> None:
        for box in self.boxes:
            box.move(x, y)


@dataclass(frozen=True)
class Layout:
    """The boxes of a drawing by the id of their shapes, the frames around them, and the size of it all."""

    boxes: Mapping[str, Box]
    frames: Sequence[Box]
    width: float
    height: float


def lay_out(drawing: Drawing) -> Layout:
    """Return the places of everything in `drawing`; no two boxes overlap."""
    frames = [_frame(title, shapes, drawing) for title, shapes in drawing.groups]
    blocks = [*([_Block([_box(each)]) for each in drawing.topics.values()]), *frames]
    home = {shape: number for number, block in enumerate(blocks) for shape in block.ports}
    edges = [(one, other) for kind, one, other in drawing.edges if home[one] != home[other]]
    below = [{home[other] for one, other in edges if home[one] == number} for number in range(len(blocks))]
    columns = _columns(_ranks(below))
    x: float = _MARGIN
    for column in columns:
        for number in column:
            blocks[number].move(x, 0)
        x += max(blocks[number].width for number in column) + _BETWEEN_COLUMNS
    # Once by what is on the left of a column, and backwards by what is on its right.
    for order, near, far in ((columns, 1, 0), (columns[::-1], 0, 1), (columns, 1, 0)):
        for column in order:
            _stack(column, blocks, [(edge[far], edge[near]) for edge in edges])
    boxes = {shape: box for block in blocks for shape, box in block.ports.items()}
    top = min((box.y for block in blocks for box in block.boxes), default=0)
    for block in blocks:
        block.move(0, _MARGIN - top)
    return Layout(
        boxes,
        [block.boxes[0] for block in frames],
        max(box.x + box.width for block in blocks for box in block.boxes) + _MARGIN,
        max(box.y + box.height for block in blocks for box in block.boxes) + _MARGIN,
    )


def _stack(column: Sequence[int], blocks: Sequence[_Block], edges: Iterable[tuple[str, str]]) -> None:
    """Put the blocks of a column under each other, each beside what it is joined to, as far as there is room.

    `edges`: (the shape elsewhere, the shape in the column).
    """
    places = {shape: box for block in blocks for shape, box in block.ports.items()}
    wanted = {}
    for number in column:
        block = blocks[number]
        apart = [places[there].middle - block.ports[here].middle for there, here in edges if here in block.ports]
        wanted[number] = block.boxes[0].y + (fmean(apart) if apart else 0)
    free = float("-inf")
    for number in sorted(column, key=lambda each: wanted[each]):
        y = max(wanted[number], free)
        blocks[number].move(0, y - blocks[number].boxes[0].y)
        free = y + blocks[number].height + _BETWEEN_ROWS


def _frame(title: str, shapes: Sequence[Shape], drawing: Drawing) -> _Block:
    """Return a sub-topology: its nodes in layers, and below each the stores that no node before it has."""
    inside = {shape.id: number for number, shape in enumerate(shapes)}
    edges = [each for each in drawing.edges if each[1] in inside and each[2] in inside]
    nodes = [shape for shape in shapes if shape.kind == "node"]
    below = [{inside[other] for kind, one, other in edges if kind == "record" and one == each.id} for each in nodes]
    stores: dict[str, str] = {}
    for kind, one, other in edges:
        if kind == "store":
            stores.setdefault(other, one)
    boxes: dict[str, Box] = {}
    x: float = _MARGIN
    for column in _columns(_ranks(below)):
        free, width = 0.0, 0.0
        for number in column:
            node = _box(nodes[number], x, free)
            parents = [boxes[one] for kind, one, other in edges if kind == "record" and other == nodes[number].id]
            if parents:
                node.y = max(free, fmean(parent.y for parent in parents))
            boxes[nodes[number].id] = node
            free = node.y + HEIGHT + _BETWEEN_ROWS
            cell = [node]
            for store in (shape for shape in shapes if stores.get(shape.id) == nodes[number].id):
                cell.append(_box(store, x + INDENT, free))
                boxes[store.id] = cell[-1]
                free += HEIGHT + _BETWEEN_ROWS
            width = max(width, *(box.x + box.width - x for box in cell), 0)
        x += width + _BETWEEN_COLUMNS
    for box in boxes.values():
        box.move(0, _TITLE + _BETWEEN_ROWS)
    right = max(box.x + box.width for box in boxes.values())
    bottom = max(box.y + box.height for box in boxes.values())
    width = max(right, _width(title)) + _MARGIN
    return _Block([Box(title, 0, 0, width, bottom + _BETWEEN_ROWS), *boxes.values()])


def _box(shape: Shape, x: float = 0, y: float = 0) -> Box:
    text = shape.text if len(shape.text) <= LONGEST else f"{shape.text[: LONGEST - 1]}…"
    return Box(text, x, y, _width(text), shape=shape)


def _width(text: str) -> float:
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return round((len(text) + wide) * _CHARACTER + 24)


def _ranks(below: Sequence[Iterable[int]]) -> list[int]:
    """Return the layer of each vertex, 0 on the left: one more than that of any before it, circles left open.

    `below`: of each vertex, those that its edges lead to.
    """
    ranks = [0] * len(below)
    order: list[int] = []
    state = [0] * len(below)  # 0: not seen, 1: on the way, 2: finished
    kept: list[list[int]] = [[] for _ in below]
    starts = set(range(len(below))) - {each for edges in below for each in edges}
    for start in [*sorted(starts), *range(len(below))]:
        if state[start]:
            continue
        path = [(start, iter(sorted(below[start])))]
        state[start] = 1
        while path:
            at, following = path[-1]
            for each in following:
                if state[each] == 1:
                    continue  # An edge back.
                kept[at].append(each)
                if state[each] == 0:
                    state[each] = 1
                    path.append((each, iter(sorted(below[each]))))
                    break
            else:
                state[at] = 2
                order.append(at)
                path.pop()
    for at in reversed(order):
        for each in kept[at]:
            ranks[each] = max(ranks[each], ranks[at] + 1)
    return ranks


def _columns(ranks: Sequence[int]) -> list[list[int]]:
    return [[at for at, rank in enumerate(ranks) if rank == number] for number in range(max(ranks, default=-1) + 1)]
