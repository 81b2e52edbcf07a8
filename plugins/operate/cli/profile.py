"""The verb `profile`: the division of a program's time, on real records, run aside."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from penstock import SerdeError, UnknownTopicError

from .command import verb
from .failures import ended_by_sigterm
from .options import application_options, find_application
from .output import count, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from penstock import Application
    from penstock.plugins.testing.profiling.inputs import TopicInput
    from penstock.plugins.testing.profiling.profile import NodeProfile, Profile


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
    default=50_000,
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
    "--top", type=click.IntRange(0), default=10, show_default=True, metavar="N", help="How many functions to show."
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
    from penstock.plugins.testing.profiling.profile import profile, profile_inputs
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
    inputs = None if source is None else _read_file(application, source, partitions)
    # What the program prints is no part of the profile.
    with ended_by_sigterm(), redirect_stdout(sys.stderr):
        if inputs is None:
            found = profile(
                application,
                limit=records,
                from_beginning=from_beginning,
                since_ms=since_ms,
                commit_every=commit_every,
                once=once,
            )
        else:
            inputs = {topic: each.first(records) for topic, each in inputs.items()}
            found = profile_inputs(application, inputs, commit_every=commit_every, once=once)
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
    from penstock.plugins.testing.profiling.inputs import TopicInput, source_of, source_topics

    from .text import LineReader, topic_serdes

    lines = list(_lines(file))
    topics = source_topics(application, {line.topic for line in lines if line.topic is not None})
    highest = max((line.partition for line in lines), default=0)
    inputs = {topic: TopicInput(partitions or highest + 1) for topic in topics}
    readers: dict[str, LineReader] = {}
    # Lines of one topic that follow each other: the reader counts them.
    for _, group in groupby(enumerate(lines), key=lambda item: (item[1].topic, item[1].number - item[0])):
        run = [line for _, line in group]
        topic, number = run[0].topic, run[0].number
        if topic is None and len(topics) != 1:
            raise SerdeError(
                f'line {number}: it has no "topic", and the program reads {", ".join(topics) or "patterns only"}: name '
                "one of them in each line"
            )
        topic = topics[0] if topic is None else topic
        if topic not in inputs:
            raise UnknownTopicError(
                f"line {number}: no source reads topic {topic!r}; the sources read: {', '.join(topics)}"
            )
        if topic not in readers:
            node = source_of(application, topic)
            serdes = topic_serdes(topic, None, application.settings, node.key_serde, node.value_serde)
            readers[topic] = LineReader(topic, inputs[topic].partitions, *serdes, json_lines=True)
        readers[topic].line = number - 1
        batch, error = readers[topic].read(b"\n".join(line.text for line in run))
        if error is not None:
            raise error
        inputs[topic].batches.append(batch)
    return inputs


class _Line(NamedTuple):
    """A line that is not empty; `partition` is 0 where it names none."""

    number: int
    topic: str | None
    partition: int
    text: bytes


def _lines(file: IO[bytes]) -> Iterator[_Line]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        topic, partition = None, None
        with suppress(ValueError, AttributeError):  # the reader says what is wrong
            record = json.loads(line)
            topic, partition = record.get("topic"), record.get("partition")
        yield _Line(
            number,
            topic if isinstance(topic, str) else None,
            partition if type(partition) is int and partition > 0 else 0,
            line.rstrip(b"\r\n"),
        )


# ---------------------------------------------------------------------- what is shown


def as_data(found: Profile, top: int) -> dict[str, Any]:
    """Return a profile as JSON data: nodes with the most time first."""
    whole, sampled = found.seconds or 1.0, sum(found.stacks.values()) or 1.0
    return {
        "application_id": found.application_id,
        "records": found.records,
        "seconds": round(found.seconds, 6),
        "records_per_second": round(found.records_per_second, 1),
        "commits": found.commits,
        "once": found.once,
        "hooks": {
            "seconds": round(found.hooked_seconds, 6),
            "cpu_seconds": round(found.hooked_cpu_seconds, 6),
            "cpu_seconds_without": None if found.once else round(found.cpu_seconds, 6),
            "overhead": None if found.overhead is None else round(found.overhead, 3),
        },
        "phases": [
            {"name": name, "seconds": round(seconds, 6), "share": round(seconds / whole, 4)}
            for name, seconds in found.phases.items()
        ],
        "nodes": [
            {
                **_rounded(asdict(node)),
                "own_us_per_record": _us(node.own_seconds, node.records_in),
                "share": None if node.seconds is None else round(node.seconds / whole, 4),
            }
            for node in _by_time(found)
        ],
        "stores": [_rounded(asdict(store)) for store in found.stores],
        "functions": [
            {
                "name": function.name,
                "file": function.file,
                "line": function.line,
                "own_share": round(function.own_seconds / sampled, 4),
                "total_share": round(function.total_seconds / sampled, 4),
            }
            for function in found.functions[:top]
        ],
        "samples": found.samples,
        "why_no_samples": found.why_no_samples,
        "error": None if found.error is None else str(found.error),
    }


def _by_time(found: Profile) -> list[NodeProfile]:
    return sorted(found.nodes, key=lambda node: -(node.seconds or 0.0))


def _rounded(data: Any) -> Any:
    """Return data with its seconds in whole microseconds."""
    if isinstance(data, dict):
        return {name: _rounded(each) for name, each in data.items()}
    if isinstance(data, (list, tuple)):
        return [_rounded(each) for each in data]
    return round(data, 6) if isinstance(data, float) else data


def _us(seconds: float | None, times: int) -> float | None:
    return None if seconds is None or not times else round(seconds / times * 1e6, 2)


def _show(found: Profile, top: int) -> None:
    whole, sampled = found.seconds or 1.0, sum(found.stacks.values()) or 1.0
    nodes = _by_time(found)
    print_text(
        f"{found.application_id}: {count(found.records)} in {found.seconds:.2f} s, "
        f"{found.records_per_second:,.0f} records/s in one thread, with {count(found.commits, 'commit')}"
    )
    if found.overhead is None:
        print_text("What the hooks cost is not known: it ran once, with them.")
    else:
        print_text(
            f"With hooks it took {found.hooked_cpu_seconds:.2f} s of CPU, without {found.cpu_seconds:.2f} s "
            f"({found.overhead:+.0%}). All times are as without."
        )
    _table(
        ["node", "kind", "in", "out", "own us", "serde us", "stores us", "share"],
        [
            (
                node.name,
                f"{node.kind} {', '.join(node.functions)}".strip(),
                f"{node.records_in:,}",
                f"{node.records_out:,}",
                _us(node.own_seconds, node.records_in),
                _us(node.serde_seconds or None, node.records_in),
                _us(sum(use.seconds for use in node.stores), node.records_in) if node.stores else None,
                None if node.seconds is None else f"{node.seconds / whole:.1%}",
            )
            for node in nodes
        ],
    )
    uses = [
        (
            use.store,
            node.name,
            ", ".join(f"{name} {number:,}" for name, number in use.calls.items()),
            _us(use.seconds, sum(use.calls.values())),
            f"{use.seconds / whole:.1%}",
        )
        for node in nodes
        for use in node.stores
    ]
    flushes = [
        (store.name, "(at commits)", "flush", None, f"{store.commit_seconds / whole:.1%}")
        for store in found.stores
        if store.commit_seconds
    ]
    _table(["store", "node", "calls", "us/call", "share"], [*uses, *flushes])
    for node in nodes:
        if node.schedule_calls:
            print_text(f"{node.name}: its punctuators and timers were called {node.schedule_calls:,} times")
    _table(
        ["phase", "seconds", "us/record", "share"],
        [
            (name, f"{seconds:.3f}", _us(seconds, found.records), f"{seconds / whole:.1%}")
            for name, seconds in found.phases.items()
        ],
    )
    _table(
        ["function", "where", "own", "total"],
        [
            (
                function.name,
                f"{function.file}:{function.line}",
                f"{function.own_seconds / sampled:.1%}",
                f"{function.total_seconds / sampled:.1%}",
            )
            for function in found.functions[:top]
        ],
    )
    if found.why_no_samples:
        note(f"No functions are shown: {found.why_no_samples}")


_TEXT = ("node", "kind", "store", "calls", "phase", "function", "where")
"""Columns that are not numbers."""


def _table(columns: list[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        print_text("")
        print_table(columns, rows, numbers=[name for name in columns if name not in _TEXT])
