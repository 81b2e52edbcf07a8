"""Drained: the open tasks of the old layout, which have processed everything up to fixed ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock import IncompatibleStateError, Log, TaskId, TopicPartition, World
from penstock.plugins.engine.program.committed import CommittedPartitions
from penstock.plugins.engine.task.epoch import begin_epoch, of_epoch
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import LastingTaskWorker, TaskWorker

from .plan import ReshardPlan

Ends = Mapping[TopicPartition, int]
Workers = Mapping[TaskId, TaskWorker]
_LOOK_SECONDS, _PATIENCE_SECONDS = 0.02, 120.0


def fixed_ends(plan: ReshardPlan, log: Log) -> Ends:
    """Return the ends of the source topics of the old layout, as they are now.

    Raises IncompatibleStateError where that is no sharp line between records by the old and by the new number: a grown
    topic that has records in its new partitions, an open transaction.
    """
    read = source_partitions(plan)
    ends = log.end_offsets(read)
    high = log.end_offsets(read, stable=False)
    changing = {each for each in read if each.topic in plan.grown or each.topic in plan.sources}
    unsettled = sorted(str(each) for each in changing if high[each] != ends[each])
    if unsettled:
        raise IncompatibleStateError(
            f"application {plan.id!r}: records are being written to {', '.join(unsettled)}: stop the writers until the "
            "ends of the topics are noted, and run this again"
        )
    counts = log.topics()
    new = [
        TopicPartition(topic, number)
        for topic, count in plan.grown.items()
        for number in range(count, counts[topic].partitions)
    ]
    written = sorted(str(each) for each, end in log.end_offsets(new, stable=False).items() if end) if new else []
    if written:
        raise IncompatibleStateError(
            f"application {plan.id!r}: {', '.join(written)} has records, so it is unknown which records of the other "
            "partitions were written by the old number: a topic must be resharded between its growth and the first "
            "record after it. Copy its records into a new topic, and name that with --source OLD=NEW"
        )
    return ends


def source_partitions(plan: ReshardPlan) -> list[TopicPartition]:
    """Return the partitions of the topics from outside that the old layout reads."""
    read = {each for partitions in plan.tasks.tasks.values() for each in partitions}
    return sorted(each for each in read if each.topic not in plan.tasks.internal)


@contextmanager
def drained(
    plan: ReshardPlan, log: Log, ends: Ends, check_lease: Callable[[], None], world: World
) -> Iterator[Workers]:
    """Process every record up to `ends`, and all that this writes to repartition topics; return the open tasks.

    This begins an epoch and takes the fences of all tasks, so no host of the old layout opens one from now on. Each
    batch is a commit as in any run, so a killed process loses nothing; the last ones stay in the log until the old
    layout is given up, so that one can go back to it. Raises what tasks raise, and
    IncompatibleStateError for a task that is behind or beyond the ends afterwards.
    """
    resources = ProcessResources(world)
    application = of_epoch(plan.before, begin_epoch(plan.before.id, log))
    if application.settings.max_task_idle is not None:
        # No more records come: a task need not wait for any that the log does not have.
        application.settings = replace(application.settings, max_task_idle="0ms")
    committed = CommittedPartitions(log, application.id, plan.note["identity"])
    workers = {
        task: LastingTaskWorker(
            application, task, partitions, log, resources=resources, task_count=len(plan.tasks.tasks)
        )
        for task, partitions in plan.tasks.tasks.items()
    }
    try:
        positions: dict[TopicPartition, int] = {}
        internal = [each for read in plan.tasks.tasks.values() for each in read if each.topic in plan.tasks.internal]
        deadline = world.seconds() + _PATIENCE_SECONDS
        clock_ms = world.clock.now_ms()  # one time for all, or punctuators that write records would never end
        while True:
            check_lease()
            before = dict(positions)
            for worker in workers.values():
                own = [each for each in worker.partitions if each.topic in plan.tasks.internal]
                planned = {each: ends[each] for each in worker.partitions if each in ends}
                planned |= log.end_offsets(own) if own else {}
                report = worker.run_batch(planned, clock_ms)
                positions |= report.positions
                committed.add(report.positions)
            if positions != before:
                deadline = world.seconds() + _PATIENCE_SECONDS
            elif hidden := _hidden(log, internal):
                if world.seconds() > deadline:
                    raise IncompatibleStateError(
                        f"application {plan.id!r}: {', '.join(hidden)}: a transaction is open there, and hides what "
                        "follows it; end the program that writes there, and run this again"
                    )
                world.sleep(_LOOK_SECONDS)
            else:
                break
        _check(plan, log, ends, positions)
        yield workers
    finally:
        for worker in workers.values():
            worker.close()
        resources.close()


def _hidden(log: Log, partitions: Sequence[TopicPartition]) -> list[str]:
    """Return the partitions with records on their way: those of a commit can be read some moments after it."""
    ends, high = log.end_offsets(partitions), log.end_offsets(partitions, stable=False)
    return [str(each) for each in partitions if ends[each] != high[each]]


def _check(plan: ReshardPlan, log: Log, ends: Ends, positions: Mapping[TopicPartition, int]) -> None:
    internal = [each for each in positions if each.topic in plan.tasks.internal]
    wanted = {**ends, **(log.end_offsets(internal) if internal else {})}
    beyond = [f"{each} is read up to {at}" for each, at in sorted(positions.items()) if at > wanted[each]]
    if beyond:
        raise IncompatibleStateError(
            f"application {plan.id!r}: {', '.join(beyond)}, beyond the ends that were noted: the application has run "
            "since. Nothing was changed; run this again"
        )
    behind = [
        f"{each} is read up to {at} of {wanted[each]}" for each, at in sorted(positions.items()) if at < wanted[each]
    ]
    if behind:
        raise IncompatibleStateError(f"application {plan.id!r}: {', '.join(behind)}, and its task goes no further")
