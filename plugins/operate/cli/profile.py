"""The verb `profile`: where the time of a program goes, on real records, run aside."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from penstock import SerdeError, UnknownTopicError

from .command import verb
from .failures import ended_by_sigterm
from .options import application_options, find_application, open_application
from .output import count, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from penstock import Application
    from penstock.plugins.testing.profiling.inputs import TopicInput
    from penstock.plugins.testing.profiling.result import NodeProfile, Profile

_RECORDS, _TOP = 50_000, 10


@verb(
    ("On the newest 50,000 records of each source topic", "penstock profile wordcount:application"),
    ("On the oldest 5,000, with a flame graph for https://speedscope.app", "penstock profile wordcount:application --from-beginning --records 5000 --flame wordcount.json"),
    ("On those of the last two hours, with a commit every 500 records of a task", "penstock profile wordcount:application --since 2h --commit-every 500"),
    ("On records of a file, each with its topic; without the log", "penstock consume text --json > text.jsonl\npenstock profile wordcount:application --file text.jsonl --json | jq '.nodes[0]'"),
)  # fmt: skip
@click.option(
    "--records",
    "-n",
    type=click.IntRange(1),
    metavar="N",
    default=_RECORDS,
    show_default=True,
    help="Up to so many records of each source topic, the newest. Topics that are compacted, and those of global "
    "stores, are read whole.",
)
@click.option("--from-beginning", "-b", is_flag=True, help="The oldest records instead.")
@click.option(
    "--since",
    metavar="TIME",
    help="The first records at or after a time: ms since the epoch, like 2026-01-01T00:00:00Z, or a time ago (90m, 7d).",
)
@click.option(
    "--file",
    "-f",
    "source",
    type=click.File("rb"),
    metavar="FILE",
    help="Records of a file (- is stdin) in place of the log: JSON lines as `penstock consume --json` writes them, each "
    'with its "topic".',
)
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(1),
    metavar="N",
    help="With --file: so many partitions of each topic. [default: as many as its lines name, or 1]",
)
@click.option(
    "--commit-every",
    type=click.IntRange(1),
    metavar="N",
    help="A commit after so many records of a task. [default: as the settings say, so one at the end if it takes less "
    "than commit_interval]",
)
@click.option(
    "--once",
    is_flag=True,
    help="Run the program only once, with hooks: for functions that do something outside. What the hooks cost is not "
    "known then.",
)
@click.option(
    "--flame",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a flame graph: FILE.json for https://speedscope.app, FILE.folded as collapsed stacks.",
)
@click.option(
    "--top", type=click.IntRange(0), default=_TOP, show_default=True, metavar="N", help="How many functions to show."
)
@click.option("--json", "as_json", is_flag=True, help="A JSON object.")
@application_options
def profile(
    target: str,
    records: int,
    from_beginning: bool,
    since: str | None,
    source: IO[bytes] | None,
    partitions: int | None,
    commit_every: int | None,
    once: bool,
    flame: Path | None,
    top: int,
    as_json: bool,
    **where: Any,
) -> None:
    """Say where the time of the application MODULE:ATTR goes: by node, phase, store and function.

    Its real tasks run in this process, on copies of real records, beside an application that may run: committed records
    are read, no group is joined, and nothing is written to the log. Log, changelog and state of the profile are in a
    temporary directory. The program's own functions are called, so what they do outside (a request, a print) is done:
    once to warm up, once without hooks and once with hooks; with --once only once.

    Ends with 1 if the program fails; the profile is of what came before.
    """
    from penstock.plugins.testing.profiling.inputs import Chosen, read_inputs
    from penstock.plugins.testing.profiling.profile import partitions_of, profile_inputs
    from penstock.plugins.testing.profiling.sampler import check_flame

    from .reset import parse_time

    if source is not None and (from_beginning or since is not None):
        raise click.UsageError("--from-beginning and --since choose records of the log: leave them out with --file")
    if source is None and partitions is not None:
        raise click.UsageError("--partitions is for --file: the topics of the log have their own")
    if from_beginning and since is not None:
        raise click.UsageError("say one of --from-beginning and --since")
    since_ms = None if since is None else parse_time("--since", since)
    if flame is not None:
        check_flame(flame)
    application = find_application(target, **where)
    topics: dict[str, int] = {}
    inputs: dict[str, TopicInput]
    if source is None:
        with open_application(application) as (application, log):
            inputs = dict(read_inputs(application, log, Chosen(records, from_beginning, since_ms)))
            topics = partitions_of(log)
    else:
        inputs = {topic: each.first(records) for topic, each in _read_file(application, source, partitions).items()}
    # What the program prints is no part of the profile.
    with ended_by_sigterm(), redirect_stdout(sys.stderr):
        found = profile_inputs(application, inputs, topics, commit_every=commit_every, once=once)
    if as_json:
        print_json(as_data(found, top))
    else:
        _show(found, top)
    if flame is not None:
        found.write_flame(str(flame))
        note(f"written to {flame}: {count(found.samples, 'sample')}")
    if found.error is not None:
        note(f"The program failed after {count(found.records)}; the profile is of these.")
        raise found.error


# ---------------------------------------------------------------------- records of a file


def _read_file(application: Application, file: IO[bytes], partitions: int | None) -> dict[str, TopicInput]:
    """Return the records of JSON lines by topic. Raises SerdeError or UnknownTopicError with the number of the line."""
    from penstock.plugins.testing.profiling.inputs import TopicInput, source_topics
    from penstock.plugins.testing.profiling.profile import source_of

    from .text import LineReader, TextSerde

    lines = list(_lines(file))
    named = {topic for topic, *_ in lines if topic is not None}
    topics = source_topics(application, named)
    highest = max((number for _, number, *_ in lines), default=0)
    made = {topic: TopicInput(partitions or highest + 1) for topic in topics}
    readers: dict[str, LineReader] = {}
    settings = application.settings
    # Lines of one topic that follow each other: the reader counts them.
    for (topic, _), group in groupby(enumerate(lines), key=lambda each: (each[1][0], each[1][2] - each[0])):
        found = [line for _, line in group]
        first = found[0][2]
        if topic is None and len(topics) != 1:
            raise SerdeError(
                f'line {first}: it has no "topic", and the program reads {", ".join(topics) or "patterns only"}: name '
                "one of them in each line"
            )
        name = topics[0] if topic is None else topic
        if name not in made:
            raise UnknownTopicError(
                f"line {first}: no source reads topic {name!r}; the sources read: {', '.join(topics)}"
            )
        if name not in readers:
            node = source_of(application, name)
            keys, values = (
                TextSerde(given or default or "str", name, is_key=is_key, config=settings.of_plugins)
                for given, default, is_key in (
                    (node.key_serde, settings.key_serde, True),
                    (node.value_serde, settings.value_serde, False),
                )
            )
            readers[name] = LineReader(
                name, made[name].partitions, keys, values, key_separator=None, json_lines=True, timestamp=None,
                headers=(), partition=None, null_marker=None,
            )  # fmt: skip
        reader = readers[name]
        reader.line = first - 1
        batch, error = reader.read(b"\n".join(line for *_, line in found))
        if error is not None:
            raise error
        made[name].batches.append(batch)
    return made


def _lines(file: IO[bytes]) -> Iterator[tuple[str | None, int, int, bytes]]:
    """Yield the topic, the partition (0 without one), the number and the text of each line that is not empty."""
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        topic, partition = None, 0
        try:
            record = json.loads(line)
        except ValueError:
            record = None  # the reader says what is wrong
        if isinstance(record, dict):
            topic = record.get("topic") if isinstance(record.get("topic"), str) else None
            partition = given if type(given := record.get("partition")) is int and given > 0 else 0
        yield topic, partition, number, line.rstrip(b"\r\n")


# ---------------------------------------------------------------------- what is shown


def as_data(found: Profile, top: int) -> dict[str, Any]:
    """Return a profile as JSON data: nodes with the most time first."""
    whole = found.seconds or 1.0
    return {
        "application_id": found.application_id,
        "records": found.records,
        "seconds": _rounded(found.seconds),
        "records_per_second": round(found.records_per_second, 1),
        "commits": found.commits,
        "once": found.once,
        "hooks": {
            "seconds": _rounded(found.hooked_seconds),
            "cpu_seconds": _rounded(found.hooked_cpu_seconds),
            "cpu_seconds_without": None if found.once else _rounded(found.cpu_seconds),
            "overhead": None if found.overhead is None else round(found.overhead, 3),
        },
        "phases": [
            {"name": name, "seconds": _rounded(seconds), "share": round(seconds / whole, 4)}
            for name, seconds in found.phases.items()
        ],
        "nodes": [
            {
                "name": each.name,
                "kind": each.kind,
                "functions": list(each.functions),
                "records_in": each.records_in,
                "records_out": each.records_out,
                "dropped": each.dropped,
                "schedule_calls": each.schedule_calls,
                "own_seconds": None if each.own_seconds is None else _rounded(each.own_seconds),
                "own_us_per_record": _us(each.own_seconds, each.records_in),
                "serde_seconds": _rounded(each.serde_seconds),
                "stores": [
                    {"store": use.store, "calls": dict(use.calls), "seconds": _rounded(use.seconds)}
                    for use in each.stores
                ],
                "share": None if each.seconds is None else round(each.seconds / whole, 4),
            }
            for each in _by_time(found)
        ],
        "stores": [
            {
                "name": each.name,
                "calls": dict(each.calls),
                "seconds": _rounded(each.seconds),
                "commit_seconds": _rounded(each.commit_seconds),
            }
            for each in found.stores
        ],
        "functions": [
            {
                "name": each.name,
                "file": each.file,
                "line": each.line,
                "own_share": round(each.own_seconds / _sampled(found), 4),
                "total_share": round(each.total_seconds / _sampled(found), 4),
            }
            for each in found.functions[:top]
        ],
        "samples": found.samples,
        "why_no_samples": found.why_no_samples,
        "error": None if found.error is None else str(found.error),
    }


def _by_time(found: Profile) -> list[NodeProfile]:
    return sorted(found.nodes, key=lambda each: -(each.seconds or 0.0))


def _sampled(found: Profile) -> float:
    return sum(found.stacks.values()) or 1.0


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


def _us(seconds: float | None, times: int) -> float | None:
    return None if seconds is None or not times else round(seconds / times * 1e6, 2)


def _show(found: Profile, top: int) -> None:
    print_text(
        f"{found.application_id}: {count(found.records)} in {found.seconds:.2f} s, "
        f"{found.records_per_second:,.0f} records/s in one thread, with {count(found.commits, 'commit')}"
    )
    print_text(_cost(found))
    whole = found.seconds or 1.0
    nodes = _by_time(found)
    print_text("")
    print_table(
        ["node", "kind", "in", "out", "own us", "serde us", "stores us", "share"],
        [
            (
                each.name,
                f"{each.kind} {', '.join(each.functions)}".strip(),
                f"{each.records_in:,}",
                f"{each.records_out:,}",
                _us(each.own_seconds, each.records_in),
                _us(each.serde_seconds or None, each.records_in),
                _us(sum(use.seconds for use in each.stores), each.records_in) if each.stores else None,
                None if each.seconds is None else f"{each.seconds / whole:.1%}",
            )
            for each in nodes
        ],
        numbers=["in", "out", "own us", "serde us", "stores us", "share"],
    )
    _show_stores(found, nodes, whole)
    print_text("")
    print_table(
        ["phase", "seconds", "us/record", "share"],
        [
            (name, f"{seconds:.3f}", _us(seconds, found.records), f"{seconds / whole:.1%}")
            for name, seconds in found.phases.items()
        ],
        numbers=["seconds", "us/record", "share"],
    )
    if found.functions and top:
        sampled = _sampled(found)
        print_text("")
        print_table(
            ["function", "where", "own", "total"],
            [
                (
                    each.name,
                    f"{each.file}:{each.line}",
                    f"{each.own_seconds / sampled:.1%}",
                    f"{each.total_seconds / sampled:.1%}",
                )
                for each in found.functions[:top]
            ],
            numbers=["own", "total"],
        )
    if found.why_no_samples:
        note(f"No functions are shown: {found.why_no_samples}")


def _show_stores(found: Profile, nodes: list[NodeProfile], whole: float) -> None:
    rows = [
        (
            use.store,
            each.name,
            _calls(use.calls),
            _us(use.seconds, sum(use.calls.values())),
            f"{use.seconds / whole:.1%}",
        )
        for each in nodes
        for use in each.stores
    ]
    rows += [
        (each.name, "(at commits)", "flush", None, f"{each.commit_seconds / whole:.1%}")
        for each in found.stores
        if each.commit_seconds
    ]
    if rows:
        print_text("")
        print_table(["store", "node", "calls", "us/call", "share"], rows, numbers=["us/call", "share"])
    for each in nodes:
        if each.schedule_calls:
            print_text(f"{each.name}: its punctuators and timers were called {each.schedule_calls:,} times")


def _calls(calls: dict[str, int] | Any) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in calls.items())


def _cost(found: Profile) -> str:
    if found.overhead is None:
        return "What the hooks cost is not known: it ran once, with them."
    return (
        f"With hooks it took {found.hooked_cpu_seconds:.2f} s of CPU, without {found.cpu_seconds:.2f} s "
        f"({found.overhead:+.0%}). All times are as without."
    )
