"""A renderer: the names of a program's nodes."""

from penstock import Program


def names(program: Program) -> str:
    """Return the names of all nodes, one a line."""
    return "".join(f"{name}\n" for name in program.nodes)
