"""continue_in_new_topics: applies `offset_out_of_range` to positions that a log deleted with their topic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing

from penstock.log import Log
from penstock.plugins.upgrade.saved_program import read_note
from penstock.settings.application import Application

from .from_state import FromStatePlan, go_on, plan_from_state
from .preparation import check_program
from .reset import Destination, to_earliest, to_latest

_log = logging.getLogger("penstock.worker")

_DESTINATIONS: Mapping[str, Destination] = {"earliest": to_earliest, "latest": to_latest}


def continue_in_new_topics(application: Application, log: Log, check_lease: Callable[[], None]) -> None:
    """Commit the start or end of source topics that were made again since the application ran, before it starts.

    Tasks keep their state: where their commit is gone with the topic, the newest one that the changelog proves. Does
    nothing with `offset_out_of_range=fail`, where nothing is lost, and where the state cannot be kept: `prepare` then
    refuses the start. The caller holds the application's lease; `check_lease` raises when it was lost.
    """
    policy = application.settings.offset_out_of_range
    if policy == "fail" or not read_note(application.id, log):
        return
    prepared = check_program(application, log)
    lost = prepared.committed.lost(prepared.assignment)
    topics = prepared.committed.made_again(lost)
    internal = set(prepared.assignment.internal)
    if not topics or any(each.topic in internal or each.topic not in topics for gone in lost.values() for each in gone):
        return
    plan = plan_from_state(application, log, _DESTINATIONS[policy], sorted(topics))
    if any(each.refused for each in plan.recoveries) or _loses_state(application, log, plan):
        return
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


def _loses_state(application: Application, log: Log, plan: FromStatePlan) -> bool:
    """Return whether a task would start with empty state: neither log nor changelog has a commit of it."""
    for each in plan.recoveries:
        if each.state == "empty":
            with closing(log.open_committer(application.id, str(each.task), plan.assignment.tasks[each.task])) as own:
                if own.committed is None:
                    return True
    return False
