"""A program as an SVG image (https://www.w3.org/TR/SVG2/), with its topics and stores, complete in itself."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

from penstock import Program

from .layout import INDENT, Box, Layout, lay_out
from .shapes import Drawing, Shape

_FILLS = {"node": ("#eef4ff", "#4a6fa5"), "store": ("#fff6dd", "#a67c00"), "topic": ("#e9f7ef", "#3c8d5a")}
_FONT = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12"'
_ARROW = (
    '<defs><marker id="penstock-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 8 4 0 8z" fill="#555"/></marker></defs>'
)


def to_svg(program: Program) -> str:
    """Return the program as an SVG image."""
    drawing = Drawing(program)
    layout = lay_out(drawing)
    size = f"{layout.width:g}", f"{layout.height:g}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}" role="img" {_FONT}>',
        "<title>Topology</title>",
        _ARROW,
        f'<rect width="{size[0]}" height="{size[1]}" fill="#fff"/>',
    ]
    lines += [_frame(frame) for frame in layout.frames]
    lines += [_edge(kind, layout, one, other) for kind, one, other in drawing.edges]
    lines += [_box(box, box.shape) for box in layout.boxes.values() if box.shape is not None]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _frame(frame: Box) -> str:
    return (
        f'<rect x="{frame.x:g}" y="{frame.y:g}" width="{frame.width:g}" height="{frame.height:g}" rx="6" '
        f'fill="#f7f7f7" stroke="#bbb"/><text x="{frame.x + 12:g}" y="{frame.y + 20:g}" fill="#555">'
        f"{_text(frame.text)}</text>"
    )


def _box(box: Box, shape: Shape) -> str:
    fill, stroke = _FILLS["topic" if shape.kind == "open" else shape.kind]
    x, y, width, height = box.x, box.y, box.width, box.height
    dashes = ' stroke-dasharray="4 3"' if shape.kind == "open" else ""
    if shape.kind == "store":
        half = f"{width / 2:g} 4 0 0"
        form = (
            f'<path d="M{x:g} {y + 4:g}a{half} 1 {width:g} 0v{height - 8:g}a{half} 1 {-width:g} 0z'
            f'm0 0a{half} 0 {width:g} 0"'
        )
    else:
        rounded = 3 if shape.kind == "node" else height / 2
        form = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{rounded:g}"'
    # The whole name is shown when the pointer is over it.
    return (
        f'<g data-id="{shape.id}" class="{shape.kind}"><title>{_text(shape.text)}</title>'
        f'{form} fill="{fill}" stroke="{stroke}"{dashes}/>'
        f'<text x="{x + width / 2:g}" y="{y + height / 2 + 4:g}" text-anchor="middle">{_text(box.text)}</text></g>'
    )


def _edge(kind: str, layout: Layout, one: str, other: str) -> str:
    begin, end = layout.boxes[one], layout.boxes[other]
    if kind == "store":
        path = _to_store(begin, end)
    else:
        path = _to_the_right(begin, end, layout.height)
    style = {
        "record": 'stroke="#555" marker-end="url(#penstock-arrow)"',
        "store": 'stroke="#a67c00" stroke-dasharray="3 3"',
        "chosen": 'stroke="#555" stroke-dasharray="4 3" marker-end="url(#penstock-arrow)"',
    }[kind]
    return f'<path data-from="{one}" data-to="{other}" d="{path}" fill="none" {style}/>'


def _to_store(begin: Box, end: Box) -> str:
    if end.x == begin.x + INDENT and end.y > begin.y:
        # Below its processor: down, and to the right.
        return f"M{begin.x + INDENT / 2:g} {begin.y + begin.height:g}V{end.middle:g}H{end.x:g}"
    x, y = begin.x + begin.width / 2, begin.y if end.y < begin.y else begin.y + begin.height
    side = end.x + end.width if x > end.x + end.width / 2 else end.x
    return f"M{x:g} {y:g}Q{x:g} {end.middle:g} {side:g} {end.middle:g}"


def _to_the_right(begin: Box, end: Box, height: float) -> str:
    left, right = begin.x + begin.width, end.x
    if right <= left:
        # Back to a layer before: around everything, at the bottom.
        return f"M{left:g} {begin.middle:g}h12V{height - 10:g}H{right - 12:g}V{end.middle:g}H{right:g}"
    bend = max(28, (right - left) / 2)
    bends = f"{left + bend:g} {begin.middle:g} {right - bend:g} {end.middle:g}"
    return f"M{left:g} {begin.middle:g}C{bends} {right:g} {end.middle:g}"


def _text(text: str) -> str:
    # XML has no escape for most control characters.
    return escape(re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))
