"""Optimising: turns the logical graph into one that answers the same with fewer topics and stores."""

from __future__ import annotations

import copy
from collections.abc import Callable

from .names import Names
from .repartition import RepartitionStep, shared_names
from .serdes import Serdes
from .step import Step

_REPARTITIONS = dict[Step, list[RepartitionStep]]


def copied(root: Step) -> Step:
    """Return a copy of a graph, so that a program can be built again with other settings."""
    copies: dict[int, Step] = {}
    pending, found = [root], []
    while pending:
        step = pending.pop()
        if id(step) not in copies:
            copies[id(step)] = copy.copy(step)
            found.append(step)
            pending.extend(step.children)
    for step in found:
        made = copies[id(step)]
        made.parents = [copies[id(each)] for each in step.parents]
        made.children = [copies[id(each)] for each in step.children]
    return copies[id(root)]


def merge_repartitions(steps: list[Step], names: Names) -> dict[str, str]:
    """Let all that needs a repartitioning after one change of keys share one topic, right behind that change.

    `steps` are all of a graph in order; it is changed in place. Return the names of sources that are gone, each with
    that of the source that took its place. Semantics: Kafka Streams' `topology.optimization`, merging of repartition
    topics: nothing is merged past a step that changes values, because the topic would carry other values.
    """
    renamed: dict[str, str] = {}
    for changer, repartitions in _by_changer(steps).items():
        if repartitions:
            _share(changer, repartitions, names, renamed)
    return renamed


def _by_changer(steps: list[Step]) -> _REPARTITIONS:
    """Return the repartitions due to each step that changes keys; behind a merge they count as the merge's."""
    found: _REPARTITIONS = {step: [] for step in steps if step.changes_key}
    for step in steps:
        if isinstance(step, RepartitionStep) and step.may_merge:
            changer = _ancestor(step, lambda each: each.changes_key)
            if changer is not None and changer is _ancestor(step, lambda each: each.changes_key or each.changes_value):
                found[changer].append(step)
    of_merges: dict[Step, list[Step]] = {}
    for merge in (step for step in steps if step.is_merge):
        of_merges[merge] = [
            changer
            for changer, repartitions in found.items()
            if all(_child_above(each, merge) is not None for each in repartitions)
            and _child_above(merge, changer) is not None
        ]
    for merge, changers in of_merges.items():
        found[merge] = [each for changer in changers for each in found[changer]]
    for changer in {each for changers in of_merges.values() for each in changers}:
        del found[changer]
    # Kafka Streams does not look at the other parents of a merge: their records would not be repartitioned at all.
    return {changer: [each for each in steps if _comes_only_from(each, changer)] for changer, steps in found.items()}


def _share(changer: Step, repartitions: list[RepartitionStep], names: Names, renamed: dict[str, str]) -> None:
    known = [each.serdes for each in repartitions]
    serdes = Serdes(
        next((each.key for each in known if each.key is not None), None),
        next((each.value for each in known if each.value is not None), None),
    )
    topic = repartitions[0].names.topic
    shared = RepartitionStep(shared_names(names, topic), serdes)
    shared.priority = changer.priority
    for each in repartitions:
        child = _child_above(each, changer)
        if child is not None:
            shared.add_child(child)
            changer.remove_child(child)
        elif _child_above(each, shared) is None:
            continue  # It is above neither any more, since what lay between was moved: it stays as it is.
        for below in list(each.children):
            for parent in list(each.parents):
                parent.add_child(below)
            each.remove_child(below)
        for parent in list(each.parents):
            parent.remove_child(each)
        renamed[each.name] = shared.name
    changer.add_child(shared)


def _child_above(step: Step, above: Step) -> Step | None:
    """Return `step`, or the step above it, that is a child of `above`."""
    return _ancestor(step, lambda each: above in each.parents)


def _ancestor(step: Step, is_it: Callable[[Step], bool]) -> Step | None:
    """Return `step` or the first step above it that is meant; all that is above a parent comes before the next one."""
    if is_it(step):
        return step
    return next((found for parent in step.parents if (found := _ancestor(parent, is_it)) is not None), None)


def _comes_only_from(step: Step, changer: Step) -> bool:
    """Return whether all records whose key has changed since the last repartitioning reach `step` through `changer`."""
    pending, seen = list(step.parents), {id(changer)}
    while pending:
        parent = pending.pop()
        if id(parent) in seen or (isinstance(parent, RepartitionStep) and parent.messages is None):
            continue
        if parent.changes_key:
            return False
        seen.add(id(parent))
        pending.extend(parent.parents)
    return True
