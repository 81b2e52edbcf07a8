"""The output of `penstock reset --from-state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .output import count, print_json, print_table, print_text

if TYPE_CHECKING:
    from penstock.plugins.applications.from_state import FromStatePlan, Recovery
    from penstock.settings.application import Application


def show_from_state(application: Application, plan: FromStatePlan, *, as_json: bool) -> None:
    """Print the state and the positions from which each task goes on, and what that repeats."""
    if as_json:
        print_json(
            {
                "application_id": application.id,
                "tasks": [_as_data(each) for each in plan.recoveries],
                "kept": plan.kept,
                "checkpoint": plan.checkpoint,
            }
        )
        return
    if plan.recoveries:
        print_table(
            ["task", "state", "topic", "partition", "now", "then"],
            [
                (
                    str(each.task),
                    each.state,
                    partition.topic,
                    partition.partition,
                    each.now.get(partition),
                    None if partition in each.open else each.then.get(partition),
                )
                for each in plan.recoveries
                for partition in sorted({*each.lost, *each.then})
            ],
            numbers=["partition", "now", "then"],
        )
    for line in _repeats(application, plan):
        print_text(line)
    print_text(f"{count(plan.kept, 'task')} {'goes' if plan.kept == 1 else 'go'} on as before")
    if plan.checkpoint is not None:
        print_text(f"Spark's checkpoint {plan.checkpoint} is deleted")


def _as_data(recovery: Recovery) -> dict[str, Any]:
    return {
        "task": str(recovery.task),
        "state": recovery.state,
        "positions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "now": recovery.now.get(each),
                "then": None if each in recovery.open else recovery.then.get(each),
                "chosen": each in recovery.chosen,
            }
            for each in sorted({*recovery.lost, *recovery.then})
        ],
        "outputs": list(recovery.outputs),
        "refused": recovery.refused or None,
    }


def _repeats(application: Application, plan: FromStatePlan) -> list[str]:
    """Return lines about outputs that may repeat, and about sub-topologies that would process them twice."""
    outputs: dict[str, list[str]] = {}
    for each in plan.recoveries:
        if not each.refused:
            for topic in each.outputs:
                outputs.setdefault(topic, []).append(str(each.task))
    lines = [
        f"what {each.task} processed after its newest proven commit is not in its state, unless the log has that commit"
        for each in plan.recoveries
        if each.commit is not None and each.chosen
    ]
    for topic, tasks in outputs.items():
        line = (
            f"records may repeat in {topic}: {', '.join(tasks)} may have processed what is after these positions before"
        )
        readers = [f"sub-topology {number}" for number, sources in plan.assignment.sources.items() if topic in sources]
        if readers and topic in plan.assignment.internal:
            line += f"; {readers[0]} of {application.id} reads it, and processes them twice"
        lines.append(line)
    return lines
