"""The verb `dlq`: lists, shows and replays dead letters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from penstock import ConfigError, LogError
from penstock.settings.dead_letters import dead_letter_topics, handlers_of
from penstock.support.printable import on_one_line

from .command import Group, options
from .options import (
    application_options,
    find_application,
    find_settings,
    load_partitioners,
    log_options,
    named_application,
    open_log,
)
from .output import count, note, print_json, print_rows, print_table, print_text
from .reset import parse_time
from .topics import topic_info

if TYPE_CHECKING:
    from penstock import Application
    from penstock.plugins.engine.program.dead_letters import Letter, Replay, Selection

_OFFSETS = re.compile(r"(\d+)(?:\s*(-)\s*(\d*))?")


@click.group(
    cls=Group,
    examples=[
        ("What there is, and how much of it was not replayed yet", "penstock dlq list shop:application"),
        ("Why, and which records", "penstock dlq show orders-failed --limit 3"),
        ("The program is mended: once more, please", "penstock dlq replay orders-failed --exception ValueError"),
    ],
)  # fmt: skip
def dlq() -> None:
    """List, show and replay dead letters.

    A dead letter is a record that failed, as it was read, in a topic that an error handler chose. Its headers say where
    it was read and what went wrong.
    """


_selection_options = options(
    click.option(
        "--exception",
        "exceptions",
        multiple=True,
        metavar="NAME",
        help="Failed with this exception, e.g. ValueError or json.decoder.JSONDecodeError. Repeatable.",
    ),
    click.option("--from-topic", "sources", multiple=True, metavar="NAME", help="Read from this topic. Repeatable."),
    click.option("--partition", type=click.IntRange(min=0), help="This partition of the dead-letter topic."),
    click.option("--offsets", metavar="FIRST-LAST", help="These offsets of the dead-letter topic: 5, 5-9 or 5- ."),
    click.option(
        "--since",
        metavar="TIME",
        help="Records of at or after a time: ms since the epoch, like 2026-01-01T00:00:00Z, or a time ago (90m, 7d).",
    ),
    click.option("--limit", "-l", type=click.IntRange(min=1), metavar="N", help="N letters at most."),
)


@dlq.verb(
    ("The topics that the application's handlers name", "penstock dlq list shop:application"),
    ("Another topic, for a program", "penstock dlq list shop:application --topic orders-failed --json"),
    name="list",
)
@click.argument("target", metavar="MODULE:ATTR")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="This topic, in place of those that handlers name. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects.")
@application_options
def list_letters(target: str, topics: Sequence[str], as_json: bool, **where: Any) -> None:
    """Count the dead letters of the application MODULE:ATTR, by source topic and exception."""
    from penstock.plugins.engine.program.dead_letters import count_letters

    application = find_application(target, **where)
    names = topics or dead_letter_topics(handlers_of(application.settings, application.program).values())
    if not names:
        raise ConfigError(
            f"no handler of {application.id!r} names a dead-letter topic (DeadLetter, or Retry with one behind it): "
            "say which with --topic"
        )
    rows: list[dict[str, Any]] = []
    with open_log(application.settings) as log:
        there = log.topics()
        for topic in names:
            if topic in topics:
                topic_info(log, topic)
            elif topic not in there:
                note(f"topic {topic} does not exist: penstock topics create {topic}")
                continue
            rows += [
                {"topic": topic, "source_topic": source, "exception": exception, "records": records, "waiting": waiting}
                for (source, exception), (records, waiting) in count_letters(log, topic).items()
            ]
    columns = ["topic", "source topic", "exception", "records", "waiting"]
    print_rows(rows, as_json, columns, numbers=columns[3:], none=f"no dead letters in {', '.join(names)}")


@dlq.verb(
    ("Three of them, with tracebacks", "penstock dlq show orders-failed --limit 3"),
    ("One, by its place", "penstock dlq show orders-failed --partition 0 --offsets 17"),
    ("Values that could not be parsed", "penstock dlq show orders-failed --exception JSONDecodeError --json | jq .value"),
)  # fmt: skip
@click.argument("topic")
@_selection_options
@click.option("--json", "as_json", is_flag=True, help="Each letter as a JSON object on a line.")
@log_options
def show(topic: str, as_json: bool, limit: int | None, **given: Any) -> None:
    """Show the dead letters of TOPIC: the record, where it was read, the exception and its traceback."""
    from penstock.plugins.engine.program.dead_letters import read_letters
    from penstock.plugins.serdes.json_text import dump_json

    selection, where = _selection(given)
    shown = 0
    with open_log(find_settings(**where)) as log:
        topic_info(log, topic)
        for letter in read_letters(log, topic, selection):
            if as_json:
                print_text(dump_json(_as_json(letter)).decode())
            else:
                print_text(f"{letter.topic} partition {letter.partition} offset {letter.offset}", bold=True)
                print_text(_as_text(letter))
            shown += 1
            if shown == limit:
                break
    if not shown:
        note("no dead letters" + (" that fit" if selection != type(selection)() else ""))


@dlq.verb(
    ("What would be sent, and where to", "penstock dlq replay orders-failed --dry-run"),
    ("All that was not replayed before", "penstock dlq replay orders-failed"),
    ("One kind, to a topic of its own", "penstock dlq replay orders-failed --exception TimeoutError --to orders-slowly"),
    ("One letter, whether it was replayed or not", "penstock dlq replay orders-failed --partition 0 --offsets 17"),
)  # fmt: skip
@click.argument("topic")
@click.option(
    "--to",
    metavar="NAME",
    help="Send them to this topic, by key; with --app, as the application's sink. [default: where each was read]",
)
@click.option(
    "--partitioner",
    "partitioners",
    multiple=True,
    metavar="TOPIC=MODULE:ATTR",
    help="With --app: the function by which the writers of a source topic choose the partition, as for the resharding. "
    "Repeatable.",
)
@_selection_options
@click.option("--all", "again", is_flag=True, help="Also letters that were replayed before.")
@click.option("--dry-run", "-n", is_flag=True, help="Show what would be sent, and send nothing.")
@click.option("--json", "as_json", is_flag=True, help="What was sent, as a JSON object.")
@log_options
def replay(
    topic: str,
    to: str | None,
    partitioners: Sequence[str],
    again: bool,
    dry_run: bool,
    as_json: bool,
    limit: int | None,
    **given: Any,
) -> None:
    """Send the dead letters of TOPIC back to the topics and partitions where they were read.

    They are sent as they were read: key, value, timestamp and headers. Each is sent once: the log remembers, in the
    commit that sends them, what was replayed, and the next replay continues behind it. Letters that are named by
    --offsets or --since are sent whether they were replayed or not.

    The headers of a letter name the topic. With --app it must be one that the application reads. Letters that cannot go
    back wait, and the command ends with 1 when it has sent the others.
    """
    from penstock.plugins.engine.program.dead_letters import replay as run_replay
    from penstock.plugins.engine.program.letter_targets import BY_HEADERS, ApplicationTargets

    selection, where = _selection(given)
    with open_log(find_settings(**where)) as log:
        topic_info(log, topic)
        application = _application_of(to, **where)
        functions = load_partitioners(partitioners)
        if functions and application is None:
            raise click.UsageError("--partitioner is about the topics of an application: name it (--app)")
        targets = BY_HEADERS if application is None else ApplicationTargets(application, log, functions)
        done = run_replay(
            log, topic, selection, to=to, limit=limit, again=again or None, dry_run=dry_run, targets=targets
        )
    _report(topic, done, dry_run=dry_run, as_json=as_json)


def _application_of(to: str | None, log: str | None, data_dir: str | None, app: str | None) -> Application | None:
    """Return the application of --app. Raises ConfigError for a Topology without an id, whose inputs are not known.

    With --to nobody asks for its inputs.
    """
    if app is None or to is not None:
        return named_application(log, data_dir, app)
    return find_application(app, log=log, data_dir=data_dir)


def _selection(given: dict[str, Any]) -> tuple[Selection, dict[str, Any]]:
    from penstock.plugins.engine.program.dead_letters import Selection

    first, last = _offsets(given.pop("offsets"))
    since = given.pop("since")
    selection = Selection(
        tuple(given.pop("exceptions")),
        tuple(given.pop("sources")),
        given.pop("partition"),
        first,
        last,
        None if since is None else parse_time("--since", since),
    )
    return selection, given


def _offsets(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    match = _OFFSETS.fullmatch(text.strip())
    if match is None or (match[3] and int(match[3]) < int(match[1])):
        raise ConfigError(f"--offsets {text!r}: expected an offset, or FIRST-LAST, for instance 5, 5-9 or 5-")
    first = int(match[1])
    if match[2] is None:
        return first, first
    return first, int(match[3]) if match[3] else None


def _report(topic: str, done: Replay, *, dry_run: bool, as_json: bool) -> None:
    records = sum(each.records for each in done.sent)
    if as_json:
        print_json(
            {
                "topic": topic,
                "dry_run": dry_run,
                "records": records,
                "left_out": done.left_out,
                "held": [
                    {"topic": name, "reason": why, "records": number} for (name, why), number in done.held.items()
                ],
                "sent": [asdict(each) for each in done.sent],
            }
        )
    elif done.sent:
        print_table(
            ["partition", "offsets", "to", "records"],
            [(each.partition, f"{each.first}-{each.last}", each.to, each.records) for each in done.sent],
            numbers=["partition", "records"],
        )
    if done.left_out:
        note(f"{count(done.left_out)} left out: without a source (a punctuator failed), or no dead letter")
    if not as_json:
        note(f"{'would replay' if dry_run else 'replayed'} {count(records)} of {topic}")
    if done.held:
        which = "; ".join(f"{count(number)} from {name!r} ({why})" for (name, why), number in done.held.items())
        raise LogError(
            f"letters of {topic!r} still wait, because they cannot be sent to their topic: {which}. Make the topic, or "
            "send them elsewhere (--to TOPIC)"
        )


def _as_json(letter: Letter) -> dict[str, Any]:
    from penstock.plugins.serdes.json_text import bytes_to_json, headers_to_json

    said = letter.note
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp,
        "key": bytes_to_json(letter.key),
        "value": bytes_to_json(letter.value),
        "headers": headers_to_json(letter.headers),
        "exception": letter.exception,
        "message": said.message if said else None,
        "source": {"topic": said.topic, "partition": said.partition, "offset": said.offset} if said else None,
        "stacktrace": said.stacktrace if said else None,
    }


def _as_text(letter: Letter) -> str:
    said = letter.note
    lines = []
    if said is None:
        lines.append("  no dead letter: it lacks the headers of one")
    else:
        where = (
            f"{on_one_line(said.topic)} partition {said.partition} offset {said.offset}"
            if said.topic
            else "no record (a punctuator)"
        )
        lines += [
            f"  read from  {where}",
            f"  exception  {on_one_line(letter.exception or '')}",
            f"  message    {_indented(said.message)}",
        ]
    lines += [
        f"  time       {_time(letter.timestamp)}",
        f"  key        {_shown(letter.key)}",
        f"  value      {_shown(letter.value)}",
    ]
    lines += [f"  header     {on_one_line(name)}: {_shown(value)}" for name, value in letter.headers]
    if said is not None and said.stacktrace:
        lines += [f"  {line}" for line in said.stacktrace.rstrip().splitlines()]
    return "\n".join(lines) + "\n\n"


def _shown(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return repr(data)
    return text if text.isprintable() else repr(text)


def _indented(text: str | None) -> str:
    return "\n             ".join((text or "").splitlines())


def _time(timestamp_ms: int) -> str:
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
