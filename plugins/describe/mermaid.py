"""A program as a mermaid flowchart (https://mermaid.js.org/syntax/flowchart.html), with its topics and stores."""

from __future__ import annotations

import re

from penstock import Program

from .shapes import Drawing, Shape


def to_mermaid(program: Program) -> str:
    """Return the program as a mermaid flowchart."""
    drawing = Drawing(program)
    lines = ["flowchart TD"]
    for number, (title, shapes) in enumerate(drawing.groups):
        lines.append(f'  subgraph group{number}["{_text(title)}"]')
        lines += [f"    {_shape(shape)}" for shape in shapes]
        lines.append("  end")
    lines += [f"  {_shape(shape)}" for shape in drawing.topics.values()]
    arrows = {"record": "-->", "store": "---", "chosen": "-.->"}
    lines += [f"  {one} {arrows[kind]} {other}" for kind, one, other in drawing.edges]
    return "\n".join(lines) + "\n"


def _shape(shape: Shape) -> str:
    left, right = {"node": ("[", "]"), "store": ("[(", ")]"), "topic": ("([", "])"), "open": ("([", "])")}[shape.kind]
    return f'{shape.id}{left}"{_text(shape.text)}"{right}'


def _text(text: str) -> str:
    # Labels are Markdown and then HTML. A dot or dash before a space starts a list there.
    return re.sub(r"[^\w .:-]|[.-](?= )", lambda found: f"#{ord(found[0])};", text)
