"""`penstock stores`."""

from __future__ import annotations

import pytest

from penstock.plugins.upgrade.saved_program import read_note, write_note

from .applications import COUNTING, TARGET, counting, run
from .console import Console
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
        write_note("counting", log, note)
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
