"""A program in Graphviz' language (https://graphviz.org/doc/info/lang.html), with its topics and stores."""

from __future__ import annotations

from penstock import Program

from .shapes import Drawing, Shape


def to_dot(program: Program) -> str:
    """Return the program in Graphviz' language."""
    drawing = Drawing(program)
    lines = ["digraph topology {", "  node [shape=box];"]
    for number, (title, shapes) in enumerate(drawing.groups):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_text(title)};"]
        lines += [f"    {_shape(shape)}" for shape in shapes]
        lines.append("  }")
    lines += [f"  {_shape(shape)}" for shape in drawing.topics.values()]
    styles = {"record": "", "store": " [dir=none, style=dashed]", "chosen": " [style=dotted]"}
    lines += [f"  {one} -> {other}{styles[kind]};" for kind, one, other in drawing.edges]
    return "\n".join([*lines, "}"]) + "\n"


def _shape(shape: Shape) -> str:
    form = {"node": "", "store": ", shape=cylinder", "topic": ", shape=cds", "open": ", shape=cds, style=dotted"}[
        shape.kind
    ]
    return f"{shape.id} [label={_text(shape.text)}{form}];"


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
