"""`penstock state`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from penstock import default_partitioner
from penstock.stores.lmdb import LmdbBackend

from .applications import TARGET, counting, run
from .console import Console
from .test_reset import append, logs

KINDS = """
from penstock import Application, Processor, PunctuationType, Topology, Windowed
from penstock import key_value_store, list_store, session_store, versioned_store, window_store
from penstock.store import ValueAndTimestamp

TEXT = {"key_serde": "str", "value_serde": "str"}
STORES = [
    key_value_store("stamped", timestamped=True, **TEXT),
    key_value_store("expiring", ttl="1s", **TEXT),
    key_value_store("here", logged=False, **TEXT),
    window_store("windows", retention="1h", window_size="10s", **TEXT),
    session_store("sessions", retention="1h", **TEXT),
    versioned_store("versions", history_retention="1h", **TEXT),
    list_store("lists", **TEXT),
    key_value_store("numbers", key_serde="int", value_serde="json"),
]

class Keep(Processor):
    def process(self, record):
        key, value, time = record.key, record.value, record.timestamp
        store = self.context.get_store
        store("stamped").put(key, ValueAndTimestamp(value, time))
        store("expiring").put(key, value)
        store("windows").put(key, value, time // 10_000 * 10_000)
        store("sessions").put(Windowed(key, time, time + 5), value)
        store("versions").put(key, value, time)
        store("lists").add(key, value)
        store("numbers").put(ord(key[0]), {"is": value})
        self.context.timer(key, time + 1000, PunctuationType.WALL_CLOCK_TIME)

    def on_timer(self, key, at):
        pass

topology = (
    Topology()
    .add_source("in", "things", key_serde="str", value_serde="str")
    .add_processor("keep", Keep, "in", stores=STORES)
)
application = Application("kinds", topology)
"""


@pytest.fixture
def counted(console: Console) -> Console:
    counting(console)
    with logs(console) as log:
        append(log, 0, "aab", 1)
    run()
    return console


def test_before_the_first_run(console: Console) -> None:
    counting(console)
    assert console("state", "list", TARGET).stderr == "counting has saved no stores\n"
    result = console("state", "get", TARGET, "counts", "a", code=2)
    assert "application 'counting' has saved no store 'counts' in the log" in result.stderr


def test_counts(counted: Console) -> None:
    """Each key is in the task of its partition; later commands read what came since."""
    assert counted("state", "get", TARGET, "counts", "a").stdout == "a\t2\n"
    [found] = counted.json_lines("state", "get", TARGET, "counts", "b", "--json")
    task = f"1_{default_partitioner(b'b', 2)}"
    assert {**found, "version": ""} == {"task": task, "version": "", "key": "b", "value": 1}
    with logs(counted) as log:
        append(log, 0, "ac", 1)
    run()
    assert counted("state", "get", TARGET, "counts", "a").stdout == "a\t3\n"
    exported = counted.json_lines("state", "export", TARGET, "counts")
    assert {each["key"]: each["value"] for each in exported} == {"a": 3, "b": 1, "c": 1}
    assert {each["task"] for each in exported} <= {"1_0", "1_1"}


def test_a_key_without_a_value(counted: Console) -> None:
    result = counted("state", "get", TARGET, "counts", "z", code=1)
    assert f"has no value of key 'z' in task 1_{default_partitioner(b'z', 2)}; --all-tasks looks" in result.stderr
    result = counted("state", "get", TARGET, "counts", "z", "--all-tasks", code=1)
    assert "in task 1_0, 1_1" in result.stderr


def test_the_list_shows_the_copies_on_this_machine(counted: Console) -> None:
    """The local state of the run, and what a command has restored; the versions are of the log."""
    before = counted.json("state", "list", TARGET, "--json")
    assert {(each["task"], each["store"], each["copy"], each["behind"]) for each in before} == {
        (f"1_{number}", "counts", "local state", 0) for number in (0, 1)
    }
    assert sum(each["entries"] for each in before) == 2
    assert all(each["bytes"] > 0 for each in before)
    counted("state", "export", TARGET, "counts")
    with logs(counted) as log:
        append(log, 0, "abcdefgh", 1)
    run()
    after = counted.json("state", "list", TARGET, "--json")
    assert sorted((each["copy"], each["behind"]) for each in after) == [
        *[("local state", 0)] * 2,
        *[("replica", 1)] * 2,
    ]
    lines = counted("state", "list", TARGET).stdout.splitlines()
    assert lines[0].split() == [
        "TASK",
        "STORE",
        "KIND",
        "BACKEND",
        "LOGGED",
        "STATE",
        "VERSION",
        "COPY",
        "ENTRIES",
        "BEHIND",
        "BYTES",
    ]
    assert len(lines) == 5


def test_limits_of_a_range(counted: Console) -> None:
    with logs(counted) as log:
        append(log, 0, "abcdefgh", 1)
    run()
    everything = counted.json_lines("state", "range", TARGET, "counts", "--json")
    assert [each["key"] for each in everything if each["task"] == "1_0"] == sorted(
        each["key"] for each in everything if each["task"] == "1_0"
    )
    some = counted.json_lines("state", "range", TARGET, "counts", "--json", "--start", "c", "--end", "f")
    assert sorted(each["key"] for each in some) == ["c", "d", "e", "f"]
    result = counted("state", "range", TARGET, "counts", "--limit", "1", "--task", "1_0")
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == "task 1_0 has more; --limit shows more of them\n"


def test_a_file_appears_when_it_is_complete(counted: Console) -> None:
    result = counted("state", "export", TARGET, "counts", "--output", "counts.jsonl")
    assert result.stdout == ""
    assert result.stderr == "2 entries of counts\n"
    lines = (counted.directory / "counts.jsonl").read_text().splitlines()
    assert {json.loads(line)["key"] for line in lines} == {"a", "b"}
    result = counted("state", "export", TARGET, "counts", "--output", "no/such/place.jsonl", code=1)
    assert "no/such/place.jsonl: No such file or directory; choose another file with --output" in result.stderr
    assert [each.name for each in counted.directory.glob("*.tmp")] == []


def test_mistakes_are_named(counted: Console, tmp_path: Path) -> None:
    assert "did you mean 'counts'?" in counted("state", "get", TARGET, "count", "a", code=2).stderr
    result = counted("state", "range", TARGET, "counts", "--task", "0_0", code=2)
    assert "--task 0_0: store 'counts' is in the tasks 1_0, 1_1" in result.stderr
    changes = counted.directory / ".penstock" / "changelog" / "counting"
    changes.rename(changes.with_name("gone"))
    result = counted("state", "export", TARGET, "counts", code=1)
    assert "no way to version" in result.stderr


@pytest.fixture
def kinds(console: Console) -> Console:
    console.write("kinds.py", KINDS)
    console("topics", "create", "things")
    lines = [
        f'{{"key": "k", "value": "{value}", "timestamp": {time}}}' for value, time in (("x", 5_000), ("y", 15_000))
    ]
    console("produce", "things", "--json-lines", stdin="\n".join(lines) + "\n")
    return console


X, Y = {"value": "x"}, {"value": "y"}
FIRST, SECOND = {"start": 0, "end": 10_000, **X}, {"start": 10_000, "end": 20_000, **Y}
OLD, NEW = {**X, "timestamp": 5_000, "valid_to": 15_000}, {**Y, "timestamp": 15_000, "valid_to": -1}
EXPECTED: list[tuple[str, list[str], list[object]]] = [
    ("stamped", [], [{**Y, "timestamp": 15_000}]),
    ("expiring", [], [Y]),
    ("windows", [], [FIRST, SECOND]),
    ("windows", ["--from", "10000"], [SECOND]),
    ("sessions", [], [{"start": 5_000, "end": 5_005, **X}, {"start": 15_000, "end": 15_005, **Y}]),
    ("versions", [], [NEW, OLD]),
    ("versions", ["--from", "7000", "--to", "7000"], [OLD]),
    ("lists", [], [X, Y]),
]


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_every_kind(kinds: Console, changelog: str) -> None:
    run("kinds:application", subtopologies=1, changelog=changelog)
    where = ("kinds:application", "--set", f"changelog={changelog}")
    for store, options, expected in EXPECTED:
        found = kinds.json_lines("state", "get", *where, store, "k", "--json", *options)
        rest = [{name: each[name] for name in each if name not in ("task", "version", "key")} for each in found]
        assert rest == expected, store
        if not options:
            assert kinds.json_lines("state", "export", *where, store) == found


def test_other_keys_and_stores(kinds: Console) -> None:
    target = "kinds:application"
    run(target, subtopologies=1)
    assert kinds("state", "get", target, "numbers", "107", "--task", "0_0").stdout == '107\t{"is":"y"}\n'
    result = kinds("state", "get", target, "numbers", "k", "--task", "0_0", code=2)
    assert "key 'k' does not fit the key serde IntSerde of store 'numbers'" in result.stderr
    result = kinds("state", "get", target, "here", "k", code=2)
    assert "store 'here' of application 'kinds' is not in the changelog (logged=False" in result.stderr
    timers = kinds.json_lines("state", "export", target, "keep.timers")
    assert [(each["key"], each["clock"]) for each in timers] == [("k", "wall_clock_time")]


def test_local_state_is_compared_with_the_changelog(counted: Console) -> None:
    found = counted.json_lines("state", "verify", TARGET, "--json")
    assert [(each["task"], each["store"], each["same"]) for each in found] == [
        ("1_0", "counts", True),
        ("1_1", "counts", True),
    ]
    assert sum(each["rows"] for each in found) == 2
    task = found[0]["task"] if found[0]["rows"] else found[1]["task"]
    directory = counted.directory / ".penstock" / "state" / "counting" / task / "lmdb" / "0"
    with closing(LmdbBackend(directory, ["counts"])) as backend:
        key, value = next(backend.range("counts"))
        version = backend.version()
        assert version is not None
        backend.write({"counts": [(key, value + b"!"), (b"\xffmore", b"")]}, version, version)
    [found] = counted.json_lines("state", "verify", TARGET, "--json", "--task", task, code=1)
    assert (found["same"], len(found["differing"]), found["added"]) == (False, 1, [{"base64": "/21vcmU="}])
    result = counted("state", "verify", TARGET, code=1)
    assert "differing 1 (e.g." in result.stdout
    assert "1 store of 'counting' differ from the changelog: stop the application" in result.stderr


def test_there_is_no_local_state(counted: Console) -> None:
    result = counted("state", "verify", TARGET, "--set", "state_dir=elsewhere", code=1)
    assert "this machine has no local state of application 'counting' under" in result.stderr
    result = counted("state", "verify", TARGET, "--task", "0_0", code=2)
    assert "--task 0_0: 'counting' has the tasks 1_0, 1_1 with stores" in result.stderr


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_every_kind_is_compared(kinds: Console, changelog: str) -> None:
    run("kinds:application", subtopologies=1, changelog=changelog)
    found = kinds.json_lines("state", "verify", "kinds:application", "--json", "--set", f"changelog={changelog}")
    assert {each["store"] for each in found} >= {"stamped", "windows", "versions", "lists", "keep.timers"}
    assert "here" not in {each["store"] for each in found}
    assert all(each["same"] for each in found)
