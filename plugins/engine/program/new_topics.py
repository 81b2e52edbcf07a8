"""prepare_and_continue: applies `offset_out_of_range` to positions that a log deleted with their topic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock import Application, Log

from .committed import LostPositionsError
from .from_state import FromStatePlan, go_on, plan_from_state
from .preparation import Prepared, prepare
from .reset import Destination, to_earliest, to_latest

_log = logging.getLogger("penstock.worker")

_DESTINATIONS: Mapping[str, Destination] = {"earliest": to_earliest, "latest": to_latest}


def prepare_and_continue(application: Application, log: Log, check_lease: Callable[[], None]) -> Prepared:
    """Prepare as `prepare`, also where source topics were made again since the application ran.

    The new start or end of these topics is committed first. Tasks keep their last commit and its state. Raises as
    `plan_to_continue`. The caller holds the application's lease; `check_lease` raises when it was lost.
    """
    try:
        return prepare(application, log, check_lease)
    except LostPositionsError as lost:
        plan = plan_to_continue(application, log, lost)
    for remark in go_on(application, log, plan, check_lease):
        _log.warning("application %r: %s", application.id, remark)
    for line in continued_tasks(application, plan):
        _log.warning("application %r, %s", application.id, line)
    return prepare(application, log, check_lease)


def plan_to_continue(application: Application, log: Log, lost: LostPositionsError) -> FromStatePlan:
    """Return where tasks continue in topics that were made again; changes nothing.

    Raises LostPositionsError: with `offset_out_of_range=fail`, where positions are lost in other topics, and where a
    task would not go on with the state of its last commit. It says whether the setting would help.
    """
    policy = application.settings.offset_out_of_range
    if not all(each.topic in lost.made_again for each in lost.partitions):
        raise lost
    plan = plan_from_state(application, log, _DESTINATIONS.get(policy, to_earliest), sorted(lost.made_again))
    obstacle = _obstacle(application, log, plan, lost)
    if policy != "fail" and not obstacle:
        return plan
    advice = (
        f"The setting `offset_out_of_range` does not help here: {obstacle}"
        if obstacle
        else "To go on with what the new topic has, set `offset_out_of_range` to earliest or latest"
    )
    raise LostPositionsError(f"{lost}. {advice}", lost.partitions, lost.made_again) from None


def continued_tasks(application: Application, plan: FromStatePlan) -> list[str]:
    """Return a text for each task that continues in a topic that was made again."""
    return [
        f"task {each.task}: topic {', '.join(map(repr, sorted({one.topic for one in each.chosen})))} was deleted and "
        f"made again: continuing from {', '.join(f'{one} offset {each.then[one]}' for one in each.chosen)} "
        f"(offset_out_of_range={application.settings.offset_out_of_range})"
        for each in plan.recoveries
    ]


def _obstacle(application: Application, log: Log, plan: FromStatePlan, lost: LostPositionsError) -> str:
    """Return why the tasks cannot go on with the state of their last commits; empty if they can."""
    if internal := sorted({each.topic for each in lost.partitions} & set(plan.assignment.internal)):
        return f"what is missing in {', '.join(internal)} is missing in the state"
    if refused := [f"task {each.task}: {each.refused}" for each in plan.recoveries if each.refused]:
        return "; ".join(refused)
    behind = [
        str(each.task)
        for each in plan.recoveries
        if each.has_stores
        and not each.now
        and log.last_commit(application.id, str(each.task), plan.assignment.tasks[each.task]) is None
    ]
    if not behind:
        return ""
    topics = " ".join(f"--topic {each}" for each in sorted(lost.made_again))
    return (
        "the log deletes a commit with the topics that it is kept beside, here the last one of task "
        f"{', '.join(behind)}, and the changelog proves earlier ones only. "
        f"`penstock reset --from-state {topics} --to-earliest` goes on with the newest of these: what was changed "
        "since is missing in the state"
    )
