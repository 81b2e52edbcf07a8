"""prepare_and_continue: applies `offset_out_of_range` to positions that a log deleted with their topic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock import Application, Log

from .changelog_location import last_commit
from .committed import LostPositionsError
from .from_state import FromStatePlan, go_on, plan_from_state
from .preparation import Prepared, prepare
from .reset import Destination, to_earliest, to_latest

_log = logging.getLogger("penstock.worker")

_DESTINATIONS: Mapping[str, Destination] = {"earliest": to_earliest, "latest": to_latest}


def prepare_and_continue(application: Application, log: Log, check_lease: Callable[[], None]) -> Prepared:
    """Prepare as `prepare`, also where source topics were made again since the application ran.

    The new start or end of these topics is committed first. Tasks keep their state: where their commit is gone with the
    topic, the newest one that the changelog proves. The start is refused with `offset_out_of_range=fail`, and where the
    state cannot be kept. The caller holds the application's lease; `check_lease` raises when it was lost.
    """
    try:
        return prepare(application, log, check_lease)
    except LostPositionsError as lost:
        if not _continue(application, log, check_lease, lost):
            raise
    return prepare(application, log, check_lease)


def _continue(application: Application, log: Log, check_lease: Callable[[], None], lost: LostPositionsError) -> bool:
    """Commit where tasks continue in the new topics; return False, and change nothing, if that is not possible."""
    policy = application.settings.offset_out_of_range
    if policy == "fail" or not all(each.topic in lost.made_again for each in lost.partitions):
        return False
    plan = plan_from_state(application, log, _DESTINATIONS[policy], sorted(lost.made_again))
    if (
        any(each.topic in plan.assignment.internal for each in lost.partitions)
        or any(each.refused for each in plan.recoveries)
        or _loses_state(application, log, plan)
    ):
        return False
    for remark in go_on(application, log, plan, check_lease):
        _log.warning("application %r: %s", application.id, remark)
    for each in plan.recoveries:
        _log.warning(
            "application %r, task %s: topic %s was deleted and made again: continuing from %s%s "
            "(offset_out_of_range=%s)",
            application.id,
            each.task,
            ", ".join(map(repr, sorted({partition.topic for partition in each.chosen}))),
            ", ".join(f"{partition} offset {each.then[partition]}" for partition in each.chosen),
            ""
            if each.commit is None
            else f", with the newest state that its changelog proves, version {each.commit.version}: "
            "the changes of the last commit may be missing",
            policy,
        )
    return True


def _loses_state(application: Application, log: Log, plan: FromStatePlan) -> bool:
    """Return whether a task would start with empty state: neither log nor changelog has a commit of it."""
    empty = (each.task for each in plan.recoveries if each.state == "empty")
    return any(last_commit(application, plan.assignment, log, task) is None for task in empty)
