"""The verb `reset`: an application starts again from chosen positions, without state."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock import Clock, ConfigError, SystemClock, TopicPartition, duration_ms

from .command import verb
from .options import application_options, by_name, confirm, find_application, leased, open_application
from .output import count, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from penstock import Application, Log
    from penstock.plugins.engine.program.from_state import FromStatePlan, Recovery
    from penstock.plugins.engine.program.reset import Destination, ResetPlan

_OFFSET = re.compile(r"(?P<topic>[^:=,\s]+)\s*[:,]\s*(?P<partition>\d+)\s*[=,]\s*(?P<offset>\d+)")


@verb(
    ("What it would do, to begin with", "penstock reset wordcount:application --dry-run"),
    ("Everything again, from what the topics still hold", "penstock reset wordcount:application"),
    ("Everything since a time, or of the last two hours", "penstock reset wordcount:application --to-time 2026-01-01T00:00:00Z\npenstock reset wordcount:application --to-time 2h --yes"),
    ("The last 100 records of each partition of one topic, again", "penstock reset alerts:application --shift-by -100 --topic readings"),
    ("After its committed positions have expired: on with its state, and what that repeats", "penstock reset alerts:application --from-state --dry-run\npenstock reset alerts:application --from-state"),
    ("To given offsets", "penstock reset alerts:application --to-offsets readings:0=1042 --to-offsets readings:1=998"),
)  # fmt: skip
@click.option("--to-earliest", is_flag=True, help="To the first record that is still there. The default.")
@click.option("--to-latest", is_flag=True, help="To the end: what waits is passed over.")
@click.option(
    "--to-time",
    metavar="TIME",
    help="To the first record at or after a time: ms since the epoch, like 2026-01-01T00:00:00Z, or a time ago (90m, "
    "7d).",
)
@click.option("--shift-by", type=int, metavar="N", help="N offsets forward from where it is, or back (-100).")
@click.option(
    "--to-offsets",
    multiple=True,
    metavar="TOPIC:PARTITION=OFFSET|FILE",
    help="To this offset; or to those that a file has, one a line. What is not named stays. Repeatable.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="Move in this source topic only; in the others it stays where it is. Repeatable.",
)
@click.option(
    "--from-state",
    is_flag=True,
    help="After the log lost the application's commits: go on with the state that the changelog proves, from the "
    "positions it belongs to. "
    "With --to-...: that is where lost positions start that nothing proves; with --topic, those in the topic in any "
    "case.",
)
@click.option("--dry-run", "-n", is_flag=True, help="Show what would be done, and do nothing. No lease is taken.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask; needed where stdin is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Show it as a JSON object.")
@application_options
def reset(
    target: str,
    to_earliest: bool,
    to_latest: bool,
    to_time: str | None,
    shift_by: int | None,
    to_offsets: Sequence[str],
    topics: Sequence[str],
    from_state: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Let the application MODULE:ATTR start again from chosen positions, with empty state.

    Its positions in source topics move; its internal topics, the state of its stores and Spark's checkpoint are
    deleted, always: state is of what was read before the old positions, and would be wrong at any others. What it wrote
    to other topics stays. It is refused while the application runs. What will be done is shown first.

    With --from-state nothing is deleted but Spark's checkpoint: it is for an application whose commits the log has
    lost, because the group's offsets have expired or were deleted, or a topic was.
    """
    from penstock.plugins.engine.program import from_state as state
    from penstock.plugins.engine.program import reset as everything

    destination = _destination(to_earliest, to_latest, to_time, shift_by, to_offsets)
    if from_state and topics and destination is None:
        raise click.UsageError(
            "--topic with --from-state: say where it starts there (--to-earliest, --to-offsets, ...)"
        )
    application = find_application(target, **where)

    def show(application: Application, log: Log) -> Callable[[Callable[[], None]], list[str]]:
        """Show the plan, and return the function that carries it out."""
        if from_state:
            going_on = state.plan_from_state(application, log, destination, topics or None)
            _show_from_state(application, going_on, as_json=as_json)
            going_on.check(application.id)
            return lambda check_lease: state.go_on(application, log, going_on, check_lease)
        plan = everything.plan_reset(application, log, destination or everything.to_earliest, topics or None)
        _show(application.id, plan, as_json=as_json)
        return lambda check_lease: everything.reset(application, log, plan, check_lease)

    if dry_run:
        with open_application(application) as (found, log):
            show(found, log)
        return
    with leased(application) as (found, log, lease):
        carry_out = show(found, log)
        confirm(f"Reset {application.id}?", yes)
        for remark in carry_out(lease.renew):
            note(remark)
    note(f"{application.id} was reset: the next run starts from there")


def _destination(
    to_earliest: bool, to_latest: bool, to_time: str | None, shift_by: int | None, to_offsets: Sequence[str]
) -> Destination | None:
    """Return the destination that the options say, None if they say none.

    Raises UsageError for more than one, or ConfigError.
    """
    from penstock.plugins.engine.program import reset

    given = {
        "--to-earliest": reset.to_earliest if to_earliest else None,
        "--to-latest": reset.to_latest if to_latest else None,
        "--to-time": None if to_time is None else reset.to_time(parse_time("--to-time", to_time)),
        "--shift-by": None if shift_by is None else reset.shift_by(shift_by),
        "--to-offsets": reset.to_offsets(_offsets(to_offsets)) if to_offsets else None,
    }
    said = {name: destination for name, destination in given.items() if destination is not None}
    if len(said) > 1:
        raise click.UsageError(f"{' and '.join(said)} exclude each other: say one")
    return next(iter(said.values()), None)


def parse_time(option: str, text: str, clock: Clock | None = None) -> int:
    """Return a time in ms since the epoch: from such a number, an ISO 8601 time, or a duration ago. Raises ConfigError.

    >>> from penstock.clock import ManualClock
    >>> parse_time("--since", "1h30m", ManualClock(6_000_000))
    600000
    """
    from .text import parse_timestamp

    try:
        return parse_timestamp(text)
    except ConfigError:
        pass
    try:
        return (clock or SystemClock()).now_ms() - duration_ms(text)
    except ConfigError:
        raise ConfigError(
            f"{option} {text!r}: expected ms since the epoch, a time like 2026-01-01T00:00:00Z, or how long ago, like "
            "90m or 7d"
        ) from None


def _offsets(given: Sequence[str]) -> Mapping[TopicPartition, int]:
    found = {}
    for name, offset in by_name("--to-offsets", _said_offsets(given)).items():
        topic, _, partition = name.rpartition(":")
        found[TopicPartition(topic, int(partition))] = offset
    return found


def _said_offsets(given: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield TOPIC:PARTITION with its offset. Raises ConfigError."""
    for text in given:
        if _OFFSET.fullmatch(text):
            lines = [(f"--to-offsets {text!r}", text)]
        else:
            try:
                content = Path(text).read_text()
            except (OSError, UnicodeDecodeError) as error:
                reason = (isinstance(error, OSError) and error.strerror) or error
                raise ConfigError(
                    f"--to-offsets {text!r}: expected TOPIC:PARTITION=OFFSET, or a file with a line for each ({reason})"
                ) from error
            lines = [(f"{text}, line {number}", line) for number, line in enumerate(content.splitlines(), 1)]
        for place, line in lines:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = _OFFSET.fullmatch(line.strip())
            if match is None:
                raise ConfigError(f"{place}: expected TOPIC:PARTITION=OFFSET or TOPIC,PARTITION,OFFSET, found {line!r}")
            yield f"{match['topic']}:{int(match['partition'])}", int(match["offset"])


def _show(application_id: str, plan: ResetPlan, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "application_id": application_id,
                "positions": [asdict(each) for each in plan.moves],
                "circular_topics": plan.circular,
                "topics": [{"name": name, "waiting": waiting} for name, waiting in plan.topics.items()],
                "stores": plan.stores,
                "tasks": plan.tasks,
                "checkpoint": plan.checkpoint,
            }
        )
    else:
        print_table(
            ["topic", "partition", "now", "then"],
            [(each.topic, each.partition, each.now, each.then) for each in plan.moves],
            numbers=["partition", "now", "then"],
        )
        for line in _deletions(plan):
            print_text(line)
    for each in plan.moves:
        if each.asked is not None:
            note(f"{each.topic} partition {each.partition} has no offset {each.asked}: {each.then} is the nearest")
    for name in plan.circular:
        note(
            f"topic {name} is written by what reads it: what {application_id} wrote there is processed again, and written "
            f"again; if nobody else writes to it, name it in the setting intermediate_topics, and it is passed over"
        )
    for name in plan.left_alone:
        note(f"topic {name} stays, for it may be of another application; if not: penstock topics delete {name}")


def _deletions(plan: ResetPlan) -> list[str]:
    lines = [
        f"topic {name} is deleted" + (f"; {count(waiting)} that wait in it are dropped" if waiting else "")
        for name, waiting in plan.topics.items()
    ]
    lines += [
        f"what topic {name} has is passed over: the application, which writes it, writes it again (--topic {name} moves "
        "elsewhere in it)"
        for name in sorted(plan.passed_over)
    ]
    if plan.stores:
        lines.append(
            f"state of {', '.join(plan.stores)} is deleted: the changelog ({plan.changelog}) of "
            f"{count(len(plan.tasks), 'task')}, and what this host has in {plan.state}"
        )
    if plan.checkpoint is not None:
        lines.append(f"Spark's checkpoint {plan.checkpoint} is deleted")
    return lines


def _show_from_state(application: Application, plan: FromStatePlan, *, as_json: bool) -> None:
    """Print the state and positions from which each task continues, and the records that this repeats."""
    if as_json:
        print_json(
            {
                "application_id": application.id,
                "tasks": [_as_data(recovery) for recovery in plan.recoveries],
                "kept": plan.kept,
                "checkpoint": plan.checkpoint,
            }
        )
        return
    if plan.recoveries:
        print_table(
            ["task", "state", "topic", "partition", "now", "then"],
            [
                (str(recovery.task), recovery.state, *partition, now, then)
                for recovery in plan.recoveries
                for partition, now, then in _positions(recovery)
            ],
            numbers=["partition", "now", "then"],
        )
    for line in _repeats(application, plan):
        print_text(line)
    print_text(f"{count(plan.kept, 'task')} {'goes' if plan.kept == 1 else 'go'} on as before")
    if plan.checkpoint is not None:
        print_text(f"Spark's checkpoint {plan.checkpoint} is deleted")


def _positions(recovery: Recovery) -> Iterator[tuple[TopicPartition, int | None, int | None]]:
    """Yield each partition with its present position and the one from which its task continues."""
    for each in sorted({*recovery.lost, *recovery.then}):
        yield each, recovery.now.get(each), None if each in recovery.open else recovery.then.get(each)


def _as_data(recovery: Recovery) -> dict[str, Any]:
    return {
        "task": str(recovery.task),
        "state": recovery.state,
        "positions": [
            {**each._asdict(), "now": now, "then": then, "chosen": each in recovery.chosen}
            for each, now, then in _positions(recovery)
        ],
        "outputs": list(recovery.outputs),
        "refused": recovery.refused or None,
    }


def _repeats(application: Application, plan: FromStatePlan) -> list[str]:
    """Return lines about outputs that may repeat, and about sub-topologies that would process them twice."""
    outputs: dict[str, list[str]] = {}
    for recovery in plan.recoveries:
        if not recovery.refused:
            for topic in recovery.outputs:
                outputs.setdefault(topic, []).append(str(recovery.task))
    lines = [
        f"what {recovery.task} processed after its newest proven commit is not in its state, unless the log has that commit"
        for recovery in plan.recoveries
        if recovery.commit is not None and recovery.chosen
    ]
    for topic, tasks in outputs.items():
        line = (
            f"records may repeat in {topic}: {', '.join(tasks)} may have processed what is after these positions before"
        )
        readers = [f"sub-topology {number}" for number, sources in plan.assignment.sources.items() if topic in sources]
        if readers:
            line += f"; {readers[0]} of {application.id} reads it, and processes them twice"
        lines.append(line)
    return lines
