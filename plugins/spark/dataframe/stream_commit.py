"""Spark's checkpoint as the commit point of a task: SparkCommitter, and StreamCommit, which it keeps of a task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock import Commit, IncompatibleStateError, OutputBatch, TaskCommitter, version_counter

STATE_SCHEMA = "version string, commit string"
_FORMAT = 2
_FORMATS = (1, 2)


@dataclass(frozen=True)
class StreamCommit:
    """A task after a batch, as the group's state in Spark's checkpoint.

    `attempt` is new for every attempt at a batch: an open task compares it to see whether its own attempt was
    committed. `read`: number of records processed so far, by topic. `anchors`: earlier versions, about as far apart as
    Spark keeps batches (see `oldest_needed`). `source_order`: see `SourceOrder`. `application`: the id with
    which the state was made. Commits of format 1 have neither.
    """

    attempt: str
    version: str
    engine_state: str = ""
    read: Mapping[str, int] = field(default_factory=dict)
    anchors: tuple[str, ...] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    source_order: tuple[str, ...] = ()
    application: str = ""

    def to_state(self) -> tuple[str, str]:
        """Return the row of `STATE_SCHEMA`; everything that a release of ours may change is in the JSON."""
        return self.version, json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_state(cls, state: tuple[str, str]) -> StreamCommit:
        """Return the commit that `to_state` made."""
        data = json.loads(state[1])
        if data.pop("format") not in _FORMATS:
            raise IncompatibleStateError(
                "Spark's checkpoint was written by another release of penstock, in a form that this one does not know: "
                "run that release, or start with a new checkpoint"
            )
        order = tuple(data.get("source_order", ()))
        return cls(**{**data, "anchors": tuple(data["anchors"]), "source_order": order})


@dataclass(frozen=True)
class SourceOrder:
    """The order of the DataFrames in Spark's plan, by topic; empty if there is only one.

    Spark's checkpoint has the offsets of sources by their places in the plan, without names. `is_given`: the user
    named the order, which then also counts for a commit without one.
    """

    topics: tuple[str, ...] = ()
    is_given: bool = False

    def problem(self, saved: tuple[str, ...]) -> str | None:
        """Return why a query cannot continue from a commit with the order `saved`, and what to do; None if it can."""
        if self.topics == saved or (self.is_given and not saved):
            return None
        now = ", ".join(map(repr, self.topics)) or "one source"
        if saved:
            before, order = f"in the order {', '.join(map(repr, saved))}", f"{list(saved)}"
        else:
            before = "in the order of the mapping that transform got, which that release of penstock did not save"
            order = "[...] with that order"
        return (
            f"Spark's checkpoint has the offsets of the DataFrames {before}. They are now in the order {now}, so each "
            f"would get the offsets of another: pass transform(..., source_order={order})"
        )


class SparkCommitter(TaskCommitter):
    """Spark's checkpoint as a commit point. There is no fence: the versions of store and changelog stand in for it.

    `commit` changes nothing yet: outputs and commit are the batch's rows and the group's state, and Spark makes both
    visible in one step. The task learns of that when the next batch begins with this commit.
    """

    def __init__(self, known: Commit | None) -> None:
        self._known = known

    @property
    def committed(self) -> Commit | None:
        """The commit that Spark has."""
        return self._known

    def is_current(self) -> bool:
        """Return True: Spark says what counts when the next batch begins."""
        return True

    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        """Do nothing: Spark takes both when the batch ends."""

    def expires(self) -> bool:
        """Return whether Spark has no commit of the task, which every batch then offers."""
        return self._known is None

    def note(self, commit: Commit) -> None:
        """Note that Spark has a commit."""
        self._known = commit

    def close(self) -> None:
        """Do nothing: nothing is open."""


def next_anchors(anchors: tuple[str, ...], version: str, kept: int) -> tuple[str, ...]:
    """Return the anchors of a commit at `version`: at most three; the first is dropped once the second is old enough.

    A batch makes at most one version. So the states of the last `kept` batches, which Spark may roll back to, are among
    the last `kept` versions.
    """
    newest = version_counter(version)
    if not anchors or newest - version_counter(anchors[-1]) >= kept:
        anchors = (*anchors, version)
    while len(anchors) > 1 and newest - version_counter(anchors[1]) >= kept:
        anchors = anchors[1:]
    return anchors


def oldest_needed(anchors: tuple[str, ...], version: str, kept: int) -> str | None:
    """Return a version that is not newer than any that Spark may roll back to; None if there is none yet."""
    old_enough = anchors and version_counter(version) - version_counter(anchors[0]) >= kept
    return anchors[0] if old_enough else None
