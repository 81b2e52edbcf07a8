"""Advice: what error messages tell the author of a program to write, in the verbs of the door that was used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """The parts of messages that name verbs. In templates `{store}` and `{node}` are names in quotes.

    `first_step`: of an empty program. `declare`, `name_store`: for a store that is not declared, or that nobody uses.
    `connect`, `declare_for`: for a node that asks for a store. `repartition`: for topics with other numbers of
    partitions. `write`: how records get into a topic. `timers`: for a node whose processor a function makes.
    """

    first_step: str
    declare: str
    name_store: str
    connect: str
    declare_for: str
    repartition: str
    write: str
    timers: str


OF_TOPOLOGY = Advice(
    first_step="add_source is the first step",
    declare="declare it with add_store",
    name_store="name it in add_processor(..., stores=[{store}]) or in connect(PROCESSOR, {store})",
    connect="connect it: topology.connect({node}, {store}), or add_processor(..., stores=[{store}])",
    declare_for="Declare it with topology.add_store(key_value_store({store}), {node})",
    repartition="put add_repartition between source and processor",
    write="add_sink",
    timers="write add_processor({node}, ..., timers=True)",
)
"""For programs that are written as a Topology."""
