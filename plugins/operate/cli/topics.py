"""The verb `topics`: create, list, describe and delete topics."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from penstock import Log, TopicInfo, TopicPartition, UnknownTopicError
from penstock.support.names import did_you_mean

from .command import Group
from .options import by_name, find_settings, log_options, name_and_value, open_log
from .output import count, note, print_json, print_table, print_text


@click.group(
    cls=Group,
    examples=[
        ("Four partitions, records kept for a week", "penstock topics create clicks --partitions 4 --config retention.ms=604800000"),
        ("What there is, for a program", "penstock topics list --json"),
    ],
)  # fmt: skip
def topics() -> None:
    """Create, list, describe and delete topics.

    A topic is an ordered log of records in one or more partitions; records with equal keys go to the
    same partition. The number of partitions is the number of tasks that can work on a topic at a time.
    """


@topics.verb(
    ("A topic with four partitions", "penstock topics create clicks --partitions 4"),
    ("A table: only the last value of each key is kept", "penstock topics create customers --partitions 4 --config cleanup.policy=compact"),
)  # fmt: skip
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--partitions", "-p", type=click.IntRange(min=1), default=1, show_default=True, help="How many partitions."
)
@click.option(
    "--config",
    "-c",
    "config",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the topic, named as in Kafka, e.g. cleanup.policy=compact or retention.ms=3600000. Repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Leave a topic alone that exists, whatever its settings.")
@log_options
def create(names: Sequence[str], partitions: int, config: Sequence[str], if_not_exists: bool, **where: Any) -> None:
    """Create topics."""
    example = ", for instance --config cleanup.policy=compact"
    pairs = [name_and_value("--config", each, example) for each in config]
    settings = by_name("--config", ((name.strip(), value.strip()) for name, value in pairs))
    with open_log(find_settings(**where)) as log:
        existing = log.topics() if if_not_exists else {}
        for name in names:
            if name in existing:
                note(f"topic {name} exists")
                continue
            log.create_topic(name, partitions, settings)
            note(f"created topic {name} with {count(partitions, 'partition')}")


@topics.verb(
    ("Names, partitions and records", "penstock topics list"),
    ("Names only, one a line", "penstock topics list --names"),
    ("For a program, the topics that applications made for themselves as well", "penstock topics list --internal --json"),
    name="list",
)  # fmt: skip
@click.option("--internal", is_flag=True, help="Also topics that applications made for themselves, but for notes.")
@click.option("--names", is_flag=True, help="Names only, one a line.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects.")
@log_options
def list_topics(internal: bool, names: bool, as_json: bool, **where: Any) -> None:
    """List topics with their partitions and records."""
    with open_log(find_settings(**where)) as log:
        found = [info for _, info in sorted(log.topics().items()) if internal or not info.internal]
        if names:
            print_text("".join(f"{info.name}\n" for info in found))
            return
        rows = [_as_json(info, log) for info in found]
    if as_json:
        print_json(rows)
    elif not rows:
        note("no topics (penstock topics create NAME makes one)")
    else:
        print_table(
            ["topic", "partitions", "records", "settings"],
            [(row["name"], row["partitions"], f"{row['records']:,}", _words(row)) for row in rows],
            numbers=["partitions", "records"],
        )


@topics.verb(
    ("Offsets of each partition, and settings", "penstock topics describe clicks"),
    ("The end offset of partition 0", "penstock topics describe clicks --json | jq '.[0].offsets[0].end'"),
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects.")
@log_options
def describe(names: Sequence[str], as_json: bool, **where: Any) -> None:
    """Show a topic's settings and the offsets of its partitions."""
    with open_log(find_settings(**where)) as log:
        rows = [_as_json(topic_info(log, name), log) for name in names]
    if as_json:
        print_json(rows)
        return
    for number, row in enumerate(rows):
        print_text(("\n" if number else "") + f"{row['name']}: {_words(row) or 'default settings'}\n")
        print_table(
            ["partition", "start", "end", "records"],
            [
                (each["partition"], each["start"], each["end"], f"{each['end'] - each['start']:,}")
                for each in row["offsets"]
            ],
            numbers=["partition", "start", "end", "records"],
        )


@topics.verb(
    ("Asks first, when at a terminal", "penstock topics delete clicks"),
    ("Several, without a question", "penstock topics delete clicks orders --yes"),
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Don't ask (nobody is asked where stdin is no terminal).")
@log_options
def delete(names: Sequence[str], yes: bool, **where: Any) -> None:
    """Delete topics and all their records."""
    with open_log(find_settings(**where)) as log:
        for name in names:
            topic_info(log, name)  # all must be there before any goes
        if not yes and sys.stdin.isatty():
            click.confirm(f"Delete {', '.join(names)} and all records?", abort=True, err=True)
        for name in names:
            log.delete_topic(name)
            note(f"deleted topic {name}")


def topic_info(log: Log, name: str) -> TopicInfo:
    """Return a topic. Raises UnknownTopicError with the nearest names."""
    found = log.topics()
    if name in found:
        return found[name]
    shown = [each for each, info in sorted(found.items()) if not info.internal]
    there = f"there are: {', '.join(shown)}" if shown else f"there are none; penstock topics create {name} makes it"
    advice = did_you_mean(name, found, 0.5) or there
    raise UnknownTopicError(f"topic {name!r} does not exist in this log; {advice}")


def _as_json(info: TopicInfo, log: Log) -> dict[str, Any]:
    partitions = [TopicPartition(info.name, number) for number in range(info.partitions)]
    starts, ends = log.start_offsets(partitions), log.end_offsets(partitions)
    return {
        "name": info.name,
        "partitions": info.partitions,
        "internal": info.internal,
        "config": dict(info.config),
        "records": sum(ends[each] - starts[each] for each in partitions),
        "offsets": [{"partition": each.partition, "start": starts[each], "end": ends[each]} for each in partitions],
    }


def _words(row: Mapping[str, Any]) -> str:
    words = [f"{name}={value}" for name, value in sorted(row["config"].items())]
    return " ".join((["internal"] if row["internal"] else []) + words)
