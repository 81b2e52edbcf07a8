"""Verbs with --checkpoint: what the checkpoint of a query of `transform` has, and what a program would do on it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click import Group

from penstock import Application
from penstock.plugins.operate.cli.command import OF_CHECKPOINTS
from penstock.plugins.operate.cli.group import penstock
from penstock.plugins.spark.sessions import tune
from penstock.spark import transform

from ..processes import ROOT
from ..spark import apps
from .console import Console

pytestmark = pytest.mark.spark

PROGRAM = """
from penstock import Application, key_value_store
from tests.spark.apps import Count, count

application = Application("clicks", count())
renamed = Application("renamed", count())
more = Application("clicks", count().add_store(key_value_store("more"), "count"))
"""
TARGET = "clicks:application"


@pytest.fixture(scope="module")
def query(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a query of two batches has run: 16 rows of four keys, in two tasks."""
    directory = tmp_path_factory.mktemp("query")
    session = tune(spark, True, 2)
    (directory / "in").mkdir()
    schema = "key string, value string, timestamp timestamp"
    rows = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(directory / "in"))
    for number in range(2):
        lines = [json.dumps({"key": f"k{each % 4}", "value": "v", "timestamp": number}) for each in range(8)]
        (directory / "in" / f"{number}.json").write_text("\n".join(lines))
    application = Application("clicks", apps.count(), data_dir=str(directory / "data"))
    out = transform(application, {"in": rows}, partitions=2).writeStream.format("noop")
    out.option("checkpointLocation", str(directory / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    return directory


@pytest.fixture
def clicks(console: Console, query: Path) -> list[str]:
    """The options that name the query."""
    console.write("clicks.py", PROGRAM)
    return ["--data-dir", str(query / "data"), "--checkpoint", str(query / "checkpoint")]


def test_status(console: Console, clicks: list[str], query: Path) -> None:
    found = console.json("status", TARGET, *clicks, "--json")
    identity = json.loads((query / "checkpoint" / "metadata").read_text())["id"]
    assert (found["application_id"], found["query"], found["batch"]) == ("clicks", identity, 1)
    assert (found["checkpoint"], found["partitions"], found["same_program"]) == (str(query / "checkpoint"), 2, True)
    tasks = found["tasks"]
    assert [each["task"] for each in tasks] == ["0_0", "0_1"]
    assert sum(each["read"]["in"] for each in tasks) == 16
    assert [each["stream_time_ms"] for each in tasks] == [1_000, 1_000]
    assert all(each["version"] > 0 and each["changelog_bytes"] > 0 and each["bytes_here"] > 0 for each in tasks)
    assert sum(each["stores"][0]["entries_here"] for each in tasks) == 4
    before = console.json("status", TARGET, *clicks, "--batch", "0", "--json")
    assert before["batch"] == 0 and sum(each["read"]["in"] for each in before["tasks"]) == 8
    text = console("status", TARGET, *clicks).stdout
    assert text.startswith(f"clicks: query {identity}, as of batch 1 of checkpoint {query / 'checkpoint'}\n")
    assert "the program that wrote it is this one" in text
    assert "1970-01-01T00:00:01.000+00:00" in text
    assert "another program wrote it: `penstock plan`" in console("status", "clicks:more", *clicks).stdout
    refused = console("status", "clicks:renamed", *clicks, code=1).stderr
    assert "made with the application id 'clicks', which its state is kept by, and not with 'renamed'" in refused


def test_plan(console: Console, clicks: list[str]) -> None:
    """It is what the start of `transform` does: continue, or refuse, with the reason."""
    text = console("plan", TARGET, *clicks, "--strict").stdout
    assert text.startswith("clicks continues, with 2 tasks.\n")
    assert "counts  0             kept" in text and "The program that ran last can come back." in text
    refused = console("plan", TARGET, *clicks, "--partitions", "3", code=1).stdout
    assert (
        refused.startswith("A start would be refused: application 'clicks', task 0_0: it does not fit")
        and "3" in refused
    )
    found = console.json("plan", "clicks:more", *clicks, "--json")
    assert {each["name"]: each["fate"] for each in found["stores"]} == {"counts": "kept", "more": "new"}
    assert len(found["rollback"]) == 1 and "'more' of sub-topology 0 is no longer" in found["rollback"][0]
    console("plan", "clicks:more", *clicks, "--strict", code=1)
    assert found["inputs"] == [
        {"name": "in", "partitions": 2, "fate": "continues", "where": None, "is_intermediate": False}
    ]
    assert "made with the application id 'clicks'" in console("plan", "clicks:renamed", *clicks, code=1).stdout
    console.write(
        "without.py",
        "from penstock import Application, Topology\n"
        "application = Application('clicks', Topology().add_source('in', 'in').add_sink('out', 'out', 'in'))\n",
    )
    assert (
        "store 'counts' of sub-topology 0 is no longer"
        in console("plan", "without:application", *clicks, code=1).stdout
    )


def test_state(console: Console, clicks: list[str], query: Path) -> None:
    """Stores are read as of each batch, from the changelog alone."""
    rows = console.json("state", "list", TARGET, *clicks, "--json")
    assert [(each["task"], each["store"], each["copy"]) for each in rows] == [
        ("0_0", "counts", "local state"), ("0_1", "counts", "local state"),
    ]  # fmt: skip
    assert sum(each["entries"] for each in rows) == 4
    console.write("data/any", "")
    shutil.copytree(query / "data" / "changelog", "data/changelog")
    elsewhere = ["--data-dir", "data", *clicks[2:]]
    assert [each["copy"] for each in console.json("state", "list", TARGET, *elsewhere, "--json")] == [None, None]
    assert console("state", "get", TARGET, "counts", "k0", *elsewhere).stdout == "k0\t4\n"
    assert console("state", "get", TARGET, "counts", "k0", *elsewhere, "--batch", "0").stdout == "k0\t2\n"
    assert "'k9' in task 0_" in console("state", "get", TARGET, "counts", "k9", *elsewhere, code=1).stderr
    ranged = console("state", "range", TARGET, "counts", *elsewhere, "--start", "k1").stdout.splitlines()
    assert sorted(ranged) == ["k1\t4", "k2\t4", "k3\t4"]
    console("state", "export", TARGET, "counts", *elsewhere, "--output", "counts.jsonl")
    lines = [json.loads(line) for line in Path("counts.jsonl").read_text().splitlines()]
    assert {each["key"]: each["value"] for each in lines} == dict.fromkeys(("k0", "k1", "k2", "k3"), 4)
    assert not Path("data/state").exists(), "nothing is left"
    shutil.rmtree("data/changelog")
    assert "changelog" in console("state", "get", TARGET, "counts", "k0", *elsewhere, code=1).stderr


def test_what_does_not_work_with_a_checkpoint_says_so(console: Console, clicks: list[str]) -> None:
    for verb in (["lag"], ["top"], ["reset"], ["run"], ["state", "verify"], ["stores", "list"]):
        refused = console(*verb, TARGET, *clicks, code=2).stderr
        assert f"penstock {' '.join(verb)} works on an application's log" in refused.replace("\n", " "), refused
    assert "--batch is one of a query" in console("status", TARGET, "--batch", "1", code=2).stderr
    assert "--follow and --timeout are for a log" in console("status", TARGET, *clicks, "-F", code=2).stderr
    assert "--against and --save are for a log" in console("plan", TARGET, *clicks, "--save", "f", code=2).stderr
    nothing = console("status", TARGET, "--checkpoint", "nothing", code=2).stderr
    assert "nothing: expected one operator of `transform`" in nothing
    assert "No such option" in console("topics", "list", "--checkpoint", "x", code=2).stderr


def test_the_verbs_with_a_checkpoint_are_those_that_the_error_names() -> None:
    def named(group: Group, path: str = "") -> list[str]:
        found = []
        for name in group.list_commands(None):  # type: ignore[arg-type]
            command = group.get_command(None, name)  # type: ignore[arg-type]
            if isinstance(command, Group):
                found += named(command, f"{path}{name} ")
            elif command is not None and any("--checkpoint" in each.opts for each in command.params):
                found.append(f"{path}{name}")
        return found

    assert sorted(named(penstock)) == sorted(
        ["status", "plan", *(f"state {each}" for each in OF_CHECKPOINTS.partition("state: ")[2].split(", "))]
    )


def test_a_process_without_a_session_starts_one(console: Console, clicks: list[str]) -> None:
    out, err = console.process("status", TARGET, *clicks, environment={"PYTHONPATH": str(ROOT)}, timeout=400)
    assert out.startswith("clicks: query ") and "Error" not in err
