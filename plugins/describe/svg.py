"""A program as an SVG image (https://www.w3.org/TR/SVG2/), with its topics and stores, complete in itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from penstock import Program

from .layout import TITLE, Box, Points, lay_out
from .shapes import Drawing, Shape

_FILLS = {"node": ("#eef4ff", "#4a6fa5"), "store": ("#fff6dd", "#a67c00"), "topic": ("#e9f7ef", "#3c8d5a")}
_FONT = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12"'
_ARROW = (
    '<defs><marker id="penstock-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path class="head" d="M0 0 8 4 0 8z" fill="#555"/></marker></defs>'
)
DARK_RULES = """@media (prefers-color-scheme: dark) {
.penstock-drawing .page { fill: #1e1e1e }
.penstock-drawing .frame { fill: #2a2a2a; stroke: #666 }
.penstock-drawing .behind { fill: #2a2a2a }
.penstock-drawing text { fill: #e6e6e6 }
.penstock-drawing .node .form { fill: #23324d; stroke: #7fa3d9 }
.penstock-drawing .store .form { fill: #453a12; stroke: #d9ae2c }
.penstock-drawing .topic .form, .penstock-drawing .open .form { fill: #1c3d2a; stroke: #63b783 }
.penstock-drawing .line { stroke: #bbb }
.penstock-drawing .kept { stroke: #d9ae2c }
.penstock-drawing .head { fill: #bbb }
}"""
"""For readers with dark colours: these rules come before the colours that the shapes have themselves."""


@dataclass(frozen=True)
class SideNote:
    """What a drawing says beside a shape. `above` and `below`: text beside the lines that enter and leave it.

    `link`: target of a click on the shape; None: nowhere.
    """

    above: str = ""
    below: str = ""
    link: str | None = None


Notes = Mapping[tuple[str, str], SideNote]
"""By the kind of a shape (node, store, topic) and its name."""


def to_svg(program: Program) -> str:
    """Return the program as an SVG image, as wide as a page; a narrower place shows all of it, smaller."""
    return _svg(program, {}, 'style="max-width:100%;height:auto" role="img"', f"<style>{DARK_RULES}</style>")


def drawn(program: Program, notes: Notes) -> str:
    """Return the program with notes as an element of a page whose stylesheet has `DARK_RULES`; it has no styles."""
    return _svg(program, notes, 'role="group" aria-label="Topology"', "")


def _svg(program: Program, notes: Notes, attributes: str, styles: str) -> str:
    drawing = Drawing(program)
    layout = lay_out(drawing)
    size = f"{layout.width:g}", f"{layout.height:g}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="penstock-drawing" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}" {attributes} {_FONT}>',
        "<title>Topology</title>",
        styles,
        _ARROW,
        f'<rect class="page" width="{size[0]}" height="{size[1]}" fill="#fff"/>',
    ]
    lines += [_frame(frame) for frame in layout.frames]
    lines += [_edge(kind, one, other, layout.lines[one, other]) for kind, one, other in drawing.edges]
    boxes = [(box, box.shape) for box in layout.boxes.values() if box.shape is not None]
    lines += [_box(box, shape, notes.get((shape.kind, shape.text), _NO_NOTE)) for box, shape in boxes]
    # Last, over the lines, each on the colour of its frame: no line goes through a title.
    lines += [_title(frame, layout.lines.values()) for frame in layout.frames]
    return "\n".join([*filter(None, lines), "</svg>"]) + "\n"


_NO_NOTE = SideNote()


def _frame(frame: Box) -> str:
    return (
        f'<rect class="frame" x="{frame.x:g}" y="{frame.y:g}" width="{frame.width:g}" height="{frame.height:g}" '
        'rx="6" fill="#f7f7f7" stroke="#bbb"/>'
    )


def _title(frame: Box, lines: Iterable[Points]) -> str:
    width = len(frame.text) * 7.3 + 12
    entering = [x for points in lines for x, y in points if y == frame.y]
    left, right = frame.x + 6, frame.x + frame.width - width - 6
    x = next((x for x in (left, right) if not any(x <= each <= x + width for each in entering)), left)
    return (
        f'<rect class="behind" x="{x:g}" y="{frame.y + 4:g}" width="{width:g}" height="{TITLE - 6:g}" '
        f'fill="#f7f7f7"/><text x="{x + 6:g}" y="{frame.y + 18:g}" fill="#333" '
        f'font-weight="bold">{_text(frame.text)}</text>'
    )


def _box(box: Box, shape: Shape, note: SideNote) -> str:
    fill, stroke = _FILLS["topic" if shape.kind == "open" else shape.kind]
    x, y, width, height = box.x, box.y, box.width, box.height
    dashes = ' stroke-dasharray="4 3"' if shape.kind == "open" else ""
    if shape.kind == "store":
        half = f"{width / 2:g} 4 0 0"
        form = (
            f'<path class="form" d="M{x:g} {y + 4:g}a{half} 1 {width:g} 0v{height - 8:g}a{half} 1 {-width:g} 0z'
            f'm0 0a{half} 0 {width:g} 0"'
        )
    else:
        rounded = 3 if shape.kind == "node" else height / 2
        form = f'<rect class="form" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{rounded:g}"'
    baseline = y + height / 2 + (6 if shape.kind == "store" else 4)
    texts = "".join(
        f'<text class="note" x="{box.middle + 6:g}" y="{at:g}" font-size="10" fill="#333">{_text(text)}</text>'
        for text, at in ((note.above, y - 5), (note.below, box.bottom + 12))
        if text
    )
    # The whole name is shown when the pointer is over it.
    drawn = (
        f'<g data-id="{shape.id}" class="{shape.kind}"><title>{_text(shape.text)}</title>'
        f'{form} fill="{fill}" stroke="{stroke}"{dashes}/><text x="{x + width / 2:g}" y="{baseline:g}" '
        f'text-anchor="middle" fill="#111">{_text(box.text)}</text>{texts}</g>'
    )
    return drawn if note.link is None else f"<a href={quoteattr(note.link)}>{drawn}</a>"


def _edge(kind: str, one: str, other: str, points: Points) -> str:
    style = {
        "record": 'class="line" stroke="#555" marker-end="url(#penstock-arrow)"',
        "store": 'class="kept" stroke="#a67c00" stroke-dasharray="3 3"',
        "chosen": 'class="line" stroke="#555" stroke-dasharray="4 3" marker-end="url(#penstock-arrow)"',
    }[kind]
    return f'<path data-from="{one}" data-to="{other}" d="{_path(points)}" fill="none" {style}/>'


def _path(points: Points) -> str:
    """Return a line through points: straight where two are above or beside each other, else a curve downwards."""
    (x, y), *rest = points
    path = f"M{x:g} {y:g}"
    for a, b in rest:
        if x == a or y == b:
            path += f"L{a:g} {b:g}"
        else:
            half = (y + b) / 2
            path += f"C{x:g} {half:g} {a:g} {half:g} {a:g} {b:g}"
        x, y = a, b
    return path


def _text(text: str) -> str:
    # XML has no escape for most control characters.
    return escape(re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))
