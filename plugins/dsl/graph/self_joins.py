"""Self-joins: a stream that is joined with itself needs one store instead of two."""

from __future__ import annotations

from .sources import SourceStep
from .step import Step
from .stream_joins import SelfJoinStep, StreamJoinStep


def share_stores_of_self_joins(steps: list[Step]) -> None:
    """Let inner joins of a stream with itself use one store.

    `steps` are all of a graph in order; it is changed in place. Two streams of the same topic are one, as it has one
    source. Semantics: Kafka Streams' `topology.optimization`, `single.store.self.join` (KIP-862).
    """
    for step in steps:
        if isinstance(step, StreamJoinStep) and not any(step.keep_unmatched) and _is_one(step.parents):
            windows = [each for parent in step.parents for each in parent.children]
            left, right = (_named(windows, side.window.name) for side in (step.left, step.right))
            made = SelfJoinStep(step)
            left.add_child(made)
            for each in (step, right):
                for parent in list(each.parents):
                    parent.remove_child(each)
            for child in list(step.children):
                child.parents[child.parents.index(step)] = made
                made.children.append(child)


def _is_one(parents: list[Step]) -> bool:
    first, *others = parents
    return all(
        isinstance(first, SourceStep)
        and isinstance(each, SourceStep)
        and (each.topics, each.pattern, each.consumed) == (first.topics, first.pattern, first.consumed)
        for each in others
    )


def _named(steps: list[Step], name: str) -> Step:
    return next(each for each in steps if each.name == name)
