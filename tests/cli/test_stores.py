"""`penstock stores`."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

import pytest

from penstock.hooks import registry
from penstock.plugins.engine.program.saved_program import read_note
from penstock.plugins.engine.task import notes
from penstock.support import packages

from .applications import COUNTING, TARGET, counting, run
from .console import Console, install
from .test_reset import append, logs

MORE = COUNTING.replace(
    'stores=[key_value_store("counts")]', 'stores=[key_value_store("counts"), key_value_store("more", logged=False)]'
)
SECOND = "counting2:application"


@pytest.fixture
def rolled_back(console: Console) -> Console:
    """A version with a second store ran, and after it the one without."""
    counting(console)
    console.write("counting2.py", MORE)
    for target in (SECOND, TARGET):
        with logs(console) as log:
            append(log, 0, "aab", 1)
        run(target)
    return console


def test_what_there_is(rolled_back: Console) -> None:
    lines = [line.split(maxsplit=4) for line in rolled_back("stores", "list", TARGET).stdout.splitlines()]
    assert lines[1] == ["counts", "1", "lmdb", "yes", "in use"]
    assert lines[2][:4] == ["more", "1", "lmdb", "no"]
    assert lines[2][4].startswith("parked, missed counting-by-word-repartition-")
    found = rolled_back.json("stores", "list", TARGET, "--json")
    assert [(each["name"], each["parked"], each["accepted"]) for each in found] == [
        ("counts", False, False),
        ("more", True, False),
    ]


def test_the_state_has_what_is_parked(rolled_back: Console) -> None:
    found = rolled_back.json("state", "list", TARGET, "--json")
    assert {(each["store"], each["parked"]) for each in found} == {("counts", False), ("more", True)}
    lines = rolled_back("state", "list", TARGET).stdout
    assert "in use" in lines and "parked, missed counting-by-word-repartition-" in lines
    # Without the sub-topology that had it, no task keeps it.
    with logs(rolled_back) as log:
        note = read_note("counting", log)
        note["parked"]["more"]["subtopology"] = "7"
        note["gone"] = {"7": {**note["fingerprint"]["subtopologies"]["1"], "stores": {}}}
        note["layouts"]["7"] = {"now": {"more": note["layouts"]["1"]["now"].pop("more")}, "earlier": {}}
        notes.PROGRAM.write("counting", log, note)
    [found] = [each for each in rolled_back.json("state", "list", TARGET, "--json") if each["store"] == "more"]
    assert (found["task"], found["parked"], found["logged"]) == (None, True, False)


def test_before_the_first_run(console: Console) -> None:
    counting(console)
    assert console("stores", "list", TARGET).stderr == "counting has saved no stores\n"
    assert console.json("stores", "list", TARGET, "--json") == []
    result = console("stores", "drop", TARGET, "counts", "--yes", code=2)
    assert "application 'counting' has no store 'counts'; it has: none" in result.stderr


def test_the_choice(rolled_back: Console) -> None:
    with pytest.raises(Exception, match="'more' was parked.*penstock stores accept"):
        run(SECOND)
    assert "comes back as it was" in rolled_back("stores", "accept", TARGET, "more").stderr
    assert rolled_back.json("stores", "list", TARGET, "--json")[1]["accepted"]
    run(SECOND)
    run(TARGET)
    result = rolled_back("stores", "drop", TARGET, "more", code=2)
    assert "add --yes to do this" in result.stderr
    assert "dropped" in rolled_back("stores", "drop", TARGET, "more", "--yes").stderr
    assert [each["name"] for each in rolled_back.json("stores", "list", TARGET, "--json")] == ["counts"]
    run(SECOND)


def test_a_store_that_is_none(rolled_back: Console) -> None:
    for verb, said in (
        ("drop", "no store 'mor'; did you mean 'more'?"),
        ("accept", "no parked store 'mor'; did you mean 'more'?"),
    ):
        options = ["--yes"] if verb == "drop" else []
        assert said in rolled_back("stores", verb, TARGET, "mor", *options, code=2).stderr
    assert "no parked store 'counts'" in rolled_back("stores", "accept", TARGET, "counts", code=2).stderr


@pytest.fixture
def without_rocksdict(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_spec
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "rocksdict" else found(name))
    monkeypatch.delitem(sys.modules, "penstock.contrib.rocksdb.backend", raising=False)
    vars(registry().find("store backend", "contrib.rocksdb")).pop("_found", None)


@pytest.mark.usefixtures("without_rocksdict")
def test_a_named_backend_whose_package_is_missing_is_an_error(console: Console) -> None:
    """Before anything is measured."""
    done = console("stores", "bench", "--backend", "memory", "--backend", "contrib.rocksdb", code=2)
    assert done.stdout == ""
    assert re.search(r"needs the package rocksdict, which is not installed: pip install .*rocksdb", done.stderr)


@pytest.mark.usefixtures("without_rocksdict")
def test_of_all_backends_those_whose_package_is_missing_are_left_out(console: Console) -> None:
    done = console("stores", "bench", "--entries", "10")
    assert "memory " in done.stdout and "contrib.rocksdb" not in done.stdout
    assert re.search(r"contrib.rocksdb: not measured: .*rocksdict.* pip install", done.stderr)


def test_a_backend_that_cannot_be_opened_is_a_failure(console: Console) -> None:
    environment = install(
        console,
        "acme",
        "@hookimpl\ndef penstock_store_backends():\n    return {'acme.shut': 'acme.backend:Shut'}\n",
        backend="class Shut:\n    def __init__(self, directory, stores):\n        raise ValueError('it is shut')\n",
    )
    _, said = console.apart("stores", "bench", "--backend", "acme.shut", environment=environment, code=1)
    assert "acme.shut: not measured: it is shut" in said


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_nothing_shows_the_content_of_a_store_that_was_dropped(console: Console, changelog: str) -> None:
    """Until the next run the last commit has it: `state get` and `export` showed what had been given up."""
    counting(console)
    where = ("--set", f"changelog={changelog}")
    with logs(console) as log:
        append(log, 0, "aag", 1)
        run(changelog=changelog)
        console("state", "get", TARGET, "counts", "a", *where)
        console("state", "drop", TARGET, "counts", "--yes", *where)
        for command in (("get", TARGET, "counts", "a"), ("export", TARGET, "counts"), ("range", TARGET, "counts")):
            said = console("state", *command, *where, code=1).stderr
            assert "store 'counts' of application 'counting' was dropped, and starts empty with the next run" in said
        append(log, 0, "g", 2)
        run(changelog=changelog)
    found = console.json_lines("state", "export", TARGET, "counts", *where)
    assert [(each["key"], each["value"]) for each in found] == [("g", 1)]
