"""`penstock state gc`: the folders of ended queries of `transform`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import TaskId, TopicPartition
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.operate.cli.target import load
from penstock.plugins.spark.dataframe.checkpoint import SourceOrder
from penstock.plugins.spark.dataframe.stream_engine import StreamTask

from ..changelogs.s3_server import S3Server
from .applications import TARGET, counting, run
from .console import Console
from .test_reset import append, logs

CLICKS = """
from penstock import Application, Processor, Topology, key_value_store

class Count(Processor):
    def process(self, record):
        pass

topology = Topology().add_source("in", "in").add_processor("count", Count, "in", stores=[key_value_store("counts")])
application = Application({id!r}, topology)
"""
FIRST, SECOND, THIRD = (f"{number}0000000-1111-4222-8333-444444444444" for number in range(3))


@contextmanager
def task_of(query: str, partition: int = 0, **settings: str) -> Iterator[None]:
    """Open a task of a query, which leaves its local state and a changelog."""
    application = load("clicks:application").with_settings(**settings)
    program = application.program
    fingerprint = program.fingerprint(program.resolve({"in": 2}, application.id))
    task = StreamTask(
        application, TaskId(0, partition), [TopicPartition("in", partition)], fingerprint, ProcessResources(),
        stream=query, kept=9, has_timeouts=False, source_order=SourceOrder(),
    )  # fmt: skip
    task.run({}, 0, None)
    yield
    task.close()


def checkpoint(console: Console, name: str, query: str) -> str:
    console.write(f"{name}/metadata", json.dumps({"id": query}))
    return name


@pytest.fixture
def clicks(console: Console) -> Console:
    """An application with two queries, and a checkpoint of each."""
    console.write("clicks.py", CLICKS.format(id="clicks"))
    for number, query in enumerate((FIRST, SECOND)):
        for partition in range(2):
            with task_of(query, partition):
                pass
        checkpoint(console, f"checkpoint{number}", query)
    return console


def folders(kind: str) -> set[str]:
    return {each.name for each in Path(".penstock", kind, "clicks").iterdir() if each.is_dir()}


GC = ("state", "gc", "clicks:application")


def test_folders_that_no_named_checkpoint_uses(clicks: Console) -> None:
    """They are listed with their sizes, and deleted only with --yes."""
    both = ("--checkpoint", "checkpoint0", "--checkpoint", str(Path("checkpoint1").absolute()))
    assert clicks(*GC, *both).stderr == "clicks: no ended query has left anything\n"
    rows = clicks.json(*GC, "--checkpoint", "checkpoint1", "--json")
    assert [(row["kind"], row["query"], row["task"], row["state"]) for row in rows] == [
        (kind, FIRST, task, "ended") for kind in ("local state", "changelog") for task in ("0_0", "0_1")
    ]
    assert all(Path(row["folder"]).is_dir() and row["bytes"] > 0 for row in rows)
    assert (
        folders("state")
        == folders("changelog")
        == {f"0_{task}.{query}" for task in (0, 1) for query in (FIRST, SECOND)}
    )
    result = clicks(*GC, "--checkpoint", "checkpoint1", "--yes")
    assert result.stdout.count("deleted") == 4 and "clicks: 4 folders deleted, " in result.stderr
    assert folders("state") == folders("changelog") == {f"0_{task}.{SECOND}" for task in (0, 1)}
    assert clicks(*GC, "--checkpoint", "checkpoint1").stdout == ""


def test_a_copy_of_a_checkpoint_has_the_folders_of_the_query(clicks: Console) -> None:
    shutil.copytree("checkpoint0", "copy")
    rows = clicks.json(*GC, "--checkpoint", "copy", "--json")
    assert {row["query"] for row in rows} == {SECOND}


@pytest.mark.parametrize("content", [None, "", "[]", '{"name": "x"}'])
def test_a_checkpoint_that_cannot_be_read_ends_it(clicks: Console, content: str | None) -> None:
    """Before anything is listed: what it uses would look unused."""
    if content is not None:
        clicks.write("broken/metadata", content)
    result = clicks(*GC, "--checkpoint", "checkpoint0", "--checkpoint", "broken", "--yes", code=1)
    assert "checkpoint broken: the id of its query cannot be read from its file 'metadata'" in result.stderr
    assert result.stdout == "" and len(folders("state")) == len(folders("changelog")) == 4
    assert "Missing option '--checkpoint'" in clicks(*GC, code=2).stderr


def test_a_query_that_runs_here_keeps_its_folders(clicks: Console) -> None:
    with task_of(THIRD):
        rows = clicks.json(*GC, "--checkpoint", "checkpoint0", "--yes", "--json")
        assert {row["query"]: row["state"] for row in rows} == {SECOND: "deleted", THIRD: "used"}
        assert folders("state") == folders("changelog") == {f"0_0.{FIRST}", f"0_1.{FIRST}", f"0_0.{THIRD}"}


def test_folders_of_a_run_are_not_listed(console: Console) -> None:
    counting(console)
    with logs(console) as log:
        append(log, 0, "aab", 1)
    run()
    checkpoint(console, "checkpoint", FIRST)
    result = console("state", "gc", TARGET, "--checkpoint", "checkpoint", "--yes")
    assert result.stdout == "" and "no ended query" in result.stderr
    assert console("state", "get", TARGET, "counts", "a").stdout == "a\t2\n"
    result = console("state", "gc", TARGET, "--checkpoint", "checkpoint", "--set", "changelog=topic:", code=2)
    assert "has its changelog in a `directory:`, found 'topic:'" in result.stderr


def test_changelogs_and_checkpoints_in_an_object_store(console: Console) -> None:
    console.write("clicks.py", CLICKS.format(id="clicks"))
    with S3Server() as s3:
        changelog = f"directory:{s3.uri('bucket/changelogs')}&compression=zlib"
        for query in (FIRST, SECOND):
            with task_of(query, changelog=changelog):
                pass
        checkpoint(console, "checkpoint", SECOND)
        gc = (*GC, "--set", f"changelog={changelog}", "--set", "state_dir=elsewhere", "--json", "--checkpoint")
        rows = console.json(*gc, "checkpoint", "--yes")
        place = f"s3://bucket/changelogs/clicks/0_0.{FIRST}"
        assert [(row["kind"], row["folder"], row["state"]) for row in rows] == [("changelog", place, "deleted")]
        left = {name.split("/")[3] for name, (data, _) in s3.objects.items() if data and "/changelogs/" in name}
        assert left == {f"0_0.{SECOND}"}
        assert console.json(*gc, "checkpoint") == []
        assert s3.objects.pop(f"bucket/changelogs/clicks/0_0.{FIRST}/")[0] == b"", "pyarrow's, for an empty folder"
        refused = console(*gc, s3.uri("bucket/nothing"), code=1)
        assert "key:secret" not in refused.stderr
