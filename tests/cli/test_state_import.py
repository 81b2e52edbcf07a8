"""`penstock state import`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from penstock import OutputBatch, SystemClock
from penstock import run as run_application
from penstock.plugins.engine.program.saved_program import read_note
from penstock.plugins.operate.cli.target import load
from penstock.plugins.state.transfer.backups import first_content

from .applications import TARGET, counting, run
from .console import Console
from .test_reset import append, logs
from .test_state import kinds  # noqa: F401


def lines(console: Console, name: str, rows: list[dict[str, Any]]) -> str:
    console.write(name, "".join(json.dumps(row) + "\n" for row in rows))
    return name


def counts(console: Console, *options: str) -> dict[str, int]:
    return {each["key"]: each["value"] for each in console.json_lines("state", "export", TARGET, "counts", *options)}


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_an_application_starts_with_content(console: Console, changelog: str) -> None:
    """Each row is in the task of its key, and is counted on."""
    counting(console)
    where = ("--set", f"changelog={changelog}")
    file = lines(console, "counts.jsonl", [{"key": key, "value": 10} for key in "abcdef"])
    result = console("state", "import", TARGET, "counts", file, *where)
    assert result.stderr == "6 entries of counts\n"
    assert counts(console, *where) == dict.fromkeys("abcdef", 10)
    assert len({each["task"] for each in console.json_lines("state", "export", TARGET, "counts", *where)}) == 2
    with logs(console) as log:
        append(log, 0, "aag", 1)
    run(changelog=changelog)
    assert counts(console, *where) == {**dict.fromkeys("bcdef", 10), "a": 12, "g": 1}
    result = console("state", "import", TARGET, "counts", file, *where, code=1)
    assert "store 'counts' of application 'counting' has content in task 1_" in result.stderr
    assert "penstock state drop MODULE:ATTR counts" in result.stderr


def test_a_row_with_the_key_of_an_earlier_one_replaces_it(console: Console) -> None:
    """It was counted as another entry."""
    counting(console)
    file = lines(console, "counts.jsonl", [{"key": key, "value": value} for value, key in enumerate("abacaa")])
    result = console("state", "import", TARGET, "counts", file)
    assert result.stderr == "3 entries of counts; 3 rows had the key of a later row, which counts\n"
    assert counts(console) == {"a": 5, "b": 1, "c": 3}


LAST_THREE = """
from penstock import Application, Processor, Topology, lru_map

class Keep(Processor):
    def process(self, record):
        self.context.get_store("last").put(record.key, record.value)

stores = [lru_map("last", max_entries=3, key_serde="str", value_serde="str")]
application = Application("lru", Topology().add_source("in", "in").add_processor("keep", Keep, "in", stores=stores))
"""


def test_rows_for_which_an_lru_map_has_no_room_are_not_counted_as_imported(console: Console) -> None:
    """It said that there were as many entries as rows."""
    console.write("lru.py", LAST_THREE)
    console("topics", "create", "in")
    file = lines(console, "rows.jsonl", [{"key": key, "value": str(number)} for number, key in enumerate("abbcdea")])
    said = console("state", "import", "lru:application", "last", file).stderr
    assert said == (
        "3 entries of last; 1 row had the key of a later row, which counts; 3 rows had no room beside later ones\n"
    )
    found = console.json_lines("state", "export", "lru:application", "last")
    assert {each["key"]: each["value"] for each in found} == {"d": "4", "e": "5", "a": "6"}


SEATS = """
from dataclasses import dataclass
from penstock import Application, Processor, Topology, key_value_store
from penstock.serdes import of

@dataclass(frozen=True)
class Numbered:
    row: str
    number: int

@dataclass(frozen=True)
class Seat:
    row: str

class Keep(Processor):
    def process(self, record):
        self.context.get_store("kept").put(record.key, record.value)

def application(key, value):
    stores = [key_value_store("kept", key_serde=of(key), value_serde=of(value))]
    topology = Topology().add_source("in", "in", key_serde=of(key), value_serde=of(value))
    return Application("seats", topology.add_processor("keep", Keep, "in", stores=stores), engine="embedded")

before, keys, values = application(Numbered, Numbered), application(Seat, Numbered), application(Numbered, Seat)
"""


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_no_key_loses_a_field(console: Console, suffix: str) -> None:
    """Rows whose keys differ in a field that the type has no more became one, and all were counted."""
    console.write("seats.py", SEATS)
    console("topics", "create", "in")
    seats = [{"row": "a", "number": 1}, {"row": "a", "number": 2}]
    file = lines(console, "seats.jsonl", [{"key": seat, "value": seat} for seat in seats])
    console("state", "import", "seats:before", "kept", file)
    console("state", "export", "seats:before", "kept", "--output", f"all.{suffix}")
    other = ("--application-id", "other")
    result = console("state", "import", "seats:keys", "kept", f"all.{suffix}", *other, code=2)
    assert "number: keys of Seat have no such field, and without it this would be another key" in result.stderr
    third = ("--application-id", "third")
    console("state", "import", "seats:values", "kept", f"all.{suffix}", *third)  # a value may lose one
    found = console.json_lines("state", "export", "seats:values", "kept", *third)
    assert [(each["key"], each["value"]) for each in found] == [(seat, {"row": "a"}) for seat in seats]
    key = json.dumps({**seats[0], "side": "left"})
    for command in (("get", "seats:before", "kept", key), ("range", "seats:before", "kept", "--start", key)):
        assert "side: keys of Numbered have no such field" in console("state", *command, code=2).stderr


ORDERS = """
from dataclasses import dataclass, field
from penstock import Application, Processor, Topology, key_value_store
from penstock.serdes import of

@dataclass(frozen=True)
class Order:
    user: str
    note: str = ""

@dataclass(frozen=True)
class Tagged:
    user: str
    note: str = ""
    tags: dict[str, int] = field(default_factory=dict)

class Keep(Processor):
    def process(self, record):
        self.context.get_store("kept").put(record.key, record.value)

def application(kind):
    stores = [key_value_store("kept", key_serde="str", value_serde=of(kind))]
    topology = Topology().add_source("in", "in", key_serde="str").add_processor("keep", Keep, "in", stores=stores)
    return Application("orders", topology, engine="embedded")

orders, tagged, lists, tagged_lists = map(application, (Order, Tagged, list[Order], list[Tagged]))
"""


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        ("orders", "tagged", {"user": "ann", "note": "x"}),
        ("tagged", "orders", {"user": "ann", "note": "x"}),
        ("lists", "tagged_lists", [{"user": "ann", "note": "x"}]),
        ("tagged_lists", "lists", []),
    ],
)
def test_a_type_may_get_and_lose_fields_that_no_column_can_have(
    console: Console, before: str, after: str, value: Any
) -> None:
    """Its values were columns, and then JSON text; the import said that the JSON object must be str."""
    console.write("orders.py", ORDERS)
    console("topics", "create", "in")
    console("state", "import", f"orders:{before}", "kept", lines(console, "rows.jsonl", [{"key": "a", "value": value}]))
    console("state", "export", f"orders:{before}", "kept", "--output", "all.parquet")
    other = ("--application-id", "other")
    console("state", "import", f"orders:{after}", "kept", "all.parquet", *other)
    (row,) = console.json_lines("state", "export", f"orders:{after}", "kept", *other)
    values = row["value"] if isinstance(row["value"], list) else [row["value"]]
    assert [{**each, "tags": {}} for each in values] == [
        {**each, "tags": {}} for each in (value if isinstance(value, list) else [value])
    ]


ANY = """
from penstock import Application, Processor, Topology, key_value_store

class Keep(Processor):
    def process(self, record):
        self.context.get_store("kept").put(record.key, record.value)

def application(serde):
    stores = [key_value_store("kept", key_serde=serde, value_serde=serde)]
    topology = Topology().add_source("in", "in", key_serde=serde).add_processor("keep", Keep, "in", stores=stores)
    return Application("any", topology, engine="embedded")

text, whole, any_one = application("str"), application("int"), application("msgpack")
"""


@pytest.mark.parametrize(
    ("before", "after", "values"),
    [
        ("text", "any_one", ["5", "null", "ann", '{"!bytes": "/w=="}']),
        ("any_one", "text", ["5", "ann"]),
        ("whole", "any_one", [5]),
        ("any_one", "whole", [5]),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_text_stays_text_in_a_store_of_another_serde(
    console: Console, suffix: str, before: str, after: str, values: list[Any]
) -> None:
    """A column of text was read as JSON: "5" became a number, and "null" was refused."""
    console.write("any.py", ANY)
    console("topics", "create", "in")
    rows = lines(console, "rows.jsonl", [{"key": each, "value": each} for each in values])
    console("state", "import", f"any:{before}", "kept", rows)
    console("state", "export", f"any:{before}", "kept", "--output", f"all.{suffix}")
    other = ("--application-id", "other")
    console("state", "import", f"any:{after}", "kept", f"all.{suffix}", *other)
    found = console.json_lines("state", "export", f"any:{after}", "kept", *other)
    assert sorted((each["key"], each["value"]) for each in found) == sorted((each, each) for each in values)


TWO_TOPICS = """
from penstock import Application
from penstock.dsl import StreamsBuilder

builder = StreamsBuilder()
others = builder.stream("others")
counts = builder.stream("counted").group_by_key().count("counts")
counts.to_stream().map_values(str).merge(others).to("out")
application = Application("two", builder, engine="embedded", state_serde="str")
"""


def test_another_topic_of_the_sub_topology_may_have_more_partitions(console: Console) -> None:
    """Rows went to tasks that read no record of their key, which was counted afresh in another one."""
    target, keys = "two_topics:application", [f"k{number}" for number in range(12)]
    console.write("two_topics.py", TWO_TOPICS)
    for topic, partitions in (("counted", "2"), ("others", "5"), ("out", "1")):
        console("topics", "create", topic, "--partitions", partitions)
    rows = [{"key": key, "value": 10, "timestamp": 1} for key in keys]
    console("state", "import", target, "counts", lines(console, "rows.jsonl", rows))
    with logs(console) as log:
        raw = [key.encode() for key in keys]
        log.append(OutputBatch("counted", list(raw), list(raw), [2] * len(raw)))
    run(target, subtopologies=1)
    found = console.json_lines("state", "export", target, "counts")
    assert sorted((each["key"], each["value"]) for each in found) == sorted((key, 11) for key in keys)
    for key in keys:
        assert console("state", "get", target, "counts", key).stdout.split()[:2] == [key, "11"]


@pytest.mark.parametrize("store", ["stamped", "windows", "sessions", "lists", "numbers"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_what_was_exported_is_imported(kinds: Console, store: str, suffix: str) -> None:  # noqa: F811
    target, copy = "kinds:application", ("--application-id", "copy")
    run(target, subtopologies=1)
    kinds("state", "export", target, store, "--output", f"all.{suffix}")
    options = ("--task", "0_0")

    def content(*where: str) -> list[dict[str, Any]]:
        rows = kinds.json_lines("state", "export", target, store, *options, *where)
        return [{name: each for name, each in row.items() if name != "version"} for row in rows]

    if store == "numbers":  # its keys are no keys of records
        result = kinds("state", "import", target, store, f"all.{suffix}", *copy, code=2)
        assert "row 1: source 'in' has no records with key 107" in result.stderr
        result = kinds("state", "import", target, store, f"all.{suffix}", *copy, "--task", "0_9", code=2)
        assert "task 0_9: store 'numbers' is in the tasks 0_0" in result.stderr
        kinds("state", "import", target, store, f"all.{suffix}", *copy, "--task", "0_0")
    else:
        kinds("state", "import", target, store, f"all.{suffix}", *copy)
    assert content(*copy) == content() != []


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_pipe_is_imported_as_a_file_is(console: Console, suffix: str) -> None:
    """Rows are read twice, and a pipe gives them once: `zcat totals.jsonl.gz | penstock state import ... /dev/stdin`."""
    counting(console)
    lines(console, "counts.jsonl", [{"key": key, "value": 10} for key in "abcdef"])
    console("state", "import", TARGET, "counts", "counts.jsonl")
    console("state", "export", TARGET, "counts", "--output", f"all.{suffix}")
    reader, writer = os.pipe()
    with open(reader, "rb") as pipe:
        with open(writer, "wb") as file:
            file.write(Path(f"all.{suffix}").read_bytes())
        copy = ("--application-id", "copy")
        given = (f"/dev/fd/{pipe.fileno()}", "--format", suffix)
        assert console("state", "import", TARGET, "counts", *given, *copy).stderr == "6 entries of counts\n"
    assert counts(console, *copy) == dict.fromkeys("abcdef", 10)


def test_rows_that_change_while_they_are_imported_are_an_error(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting(console)
    file = lines(console, "counts.jsonl", [{"key": key, "value": 10} for key in "abcdef"])
    check = first_content._Placing.check

    def check_and_cut(self: Any, rows: Any) -> int:
        found = check(self, rows)
        lines(console, "counts.jsonl", [{"key": "a", "value": 10}])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(first_content._Placing, "check", check_and_cut)
        result = console("state", "import", TARGET, "counts", file, code=2)
    assert "6 rows were checked, and then 1 was there" in result.stderr and "repeat the import" in result.stderr
    with pytest.raises(Exception, match="is being restored or filled"):
        run()


def test_a_wrong_row_is_named_and_nothing_is_done(console: Console, kinds: Console) -> None:  # noqa: F811
    """Its program was noted already, and its topics were made."""
    target = "kinds:application"
    nothing = kinds("topics", "list").stdout

    def is_untouched(store: str) -> bool:
        said = kinds("state", "export", target, store, code=2).stderr
        return "it has not run there" in said and kinds("topics", "list").stdout == nothing

    for row, said in (
        ({"key": "a"}, "row 2: it has no 'value'"),
        ({"key": 5, "value": "x"}, "bad.jsonl, line 2: "),
        ({"key": "a", "value": "x", "start": 5}, "row 2: it has no 'end'"),
        ([], "bad.jsonl, line 2: "),
    ):
        store = "sessions" if "end" in said else "lists"
        good = {"key": "a", "value": "x", "start": 0, "end": 1}
        file = lines(console, "bad.jsonl", [good, row])  # type: ignore[list-item]
        assert said in kinds("state", "import", target, store, file, code=2).stderr
        assert is_untouched(store)
    for store, parts, said in (
        ("windows", {"start": "5"}, "row 2: its start is '5': expected ms since the epoch"),
        ("windows", {"start": -5}, "row 2: its start is '-5'"),
        ("windows", {"start": 2**63}, "row 2: its start is '9223372036854775808'"),
        (
            "windows",
            {"end": 7},
            "row 2: its window is from 0 to 7, and the window of store 'windows' that starts at 0 "
            "ends at 10000, after 10000 ms: correct the row, leave it out, or declare the windows that the rows have",
        ),
        ("windows", {"end": "10000"}, "row 2: its end is '10000': expected ms since the epoch"),
        ("sessions", {"start": True}, "row 2: its start is 'True'"),
        ("sessions", {"start": 9, "end": 5}, "row 2: its end 5 is before its start 9"),
        ("stamped", {"timestamp": 1.5}, "row 2: its timestamp is '1.5'"),
    ):
        good = {"key": "a", "value": "x", "start": 0, "end": 10_000, "timestamp": 0}
        file = lines(console, "bad.jsonl", [good, {**good, **parts}])
        assert said in kinds("state", "import", target, store, file, code=2).stderr
        assert is_untouched(store)
    kinds("state", "import", target, "windows", lines(console, "good.jsonl", [good]))  # nothing waits to be repeated
    console.write("bad.jsonl", "{")
    assert "bad.jsonl, line 1: " in kinds("state", "import", target, "lists", "bad.jsonl", code=2).stderr
    console.write("bad.parquet", "{")
    assert "bad.parquet, row 0: " in kinds("state", "import", target, "lists", "bad.parquet", code=2).stderr
    result = kinds("state", "import", target, "versions", "bad.jsonl", code=2)
    assert "store 'versions' is of kind 'versioned': only key_value" in result.stderr


def test_a_refused_import_leaves_the_note_of_the_last_program(console: Console) -> None:
    """Where the store had content, the program of the import was noted in place of the one that had run."""
    counting(console)
    run()
    file = lines(console, "counts.jsonl", [{"key": "a", "value": 10}])
    with logs(console) as log:
        append(log, 0, "aag", 1)
        run()
        before = read_note("counting", log)
        text = (console.directory / "counting.py").read_text()
        console.write("later.py", text.replace('stores=[key_value_store("counts")]',
                                               'stores=[key_value_store("counts"), key_value_store("more")]'))  # fmt: skip
        said = console("state", "import", "later:application", "counts", file, code=1).stderr
        assert "store 'counts' of application 'counting' has content in task 1_" in said
        console("state", "import", "later:application", "more", lines(console, "bad.jsonl", [{"key": "a"}]), code=2)
        assert read_note("counting", log) == before
        console("state", "import", "later:application", "more", file)
        assert read_note("counting", log) != before


JOINED = """
from penstock import Application
from penstock.dsl import StreamsBuilder, within

builder = StreamsBuilder()
joined = builder.stream("in").join(builder.stream("other"), lambda a, b: a + b, within("10s", grace="5s"), name="pairs")
joined.to("out")
application = Application("joined", builder, engine="embedded", state_serde="str")
"""


def test_rows_of_one_window_and_key_are_all_there(console: Console) -> None:
    """The import said that most rows of a join's store had expired, and put all."""
    console.write("joined.py", JOINED)
    console("topics", "create", "in", "other", "out")
    rows = [{"key": key, "value": f"{at}", "start": at, "end": at + 20_000} for key in "ab" for at in (9, 7, 9, 9, 8)]
    said = console("state", "import", "joined:application", "pairs-this-join-store", lines(console, "r.jsonl", rows))
    assert said.stderr == "10 entries of pairs-this-join-store\n"
    found = console.json_lines("state", "export", "joined:application", "pairs-this-join-store")
    assert sorted((each["key"], each["value"]) for each in found) == sorted(
        (each["key"], each["value"]) for each in rows
    )


IN_FLIGHT = """
from dataclasses import dataclass
from penstock import Application
from penstock.dsl import StreamsBuilder, tumbling
from penstock.serdes import of

@dataclass(frozen=True)
class Seat:
    row: str
    number: int = 0

builder = StreamsBuilder()
seats = builder.stream("in", key_serde=of(Seat), value_serde=of(Seat))
looked_up = seats.map_values_async(lambda seat: Seat(seat.row * 2, seat.number), name="look")
looked_up.to("out", key_serde=of(Seat), value_serde=of(Seat))
counts = seats.group_by_key().windowed_by(tumbling("10ms", grace="0s")).count("counts")
late = counts.suppress("window_closes", name="wait").to_stream(lambda window, count: str(window.key), with_key=True)
late.to("late", key_serde="str", value_serde="int")
application = Application("flight", builder, engine="embedded")
"""


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_rows_of_the_verbs_own_stores_are_exported_and_imported(console: Console, suffix: str) -> None:
    """Those of classes were refused, and the others were in no task without --task."""
    console.write("flight.py", IN_FLIGHT)
    console("topics", "create", "in", "out", "late", "--partitions", "2")
    target, copy = "flight:application", ("--application-id", "copy")
    seats = [{"row": letter, "number": number} for number, letter in enumerate("abcdef")]
    record = {"headers": {"!tuple": []}, "timestamp": 1, "stream_time": 1, "attempt": 1, "source": None}
    pending = [{"key": {"!tuple": [5, seat]}, "value": {**record, "value": seat}} for seat in seats]
    console("state", "import", target, "look-pending", lines(console, "rows.jsonl", pending))
    console("state", "export", target, "look-pending", "--output", f"pending.{suffix}")
    assert console("state", "import", target, "look-pending", f"pending.{suffix}", *copy).stderr.startswith("6 entries")
    found = console.json_lines("state", "export", target, "look-pending", *copy)
    assert sorted(json.dumps(each["value"]["value"]) for each in found) == sorted(map(json.dumps, seats))
    assert {each["task"] for each in found} == {"0_0", "0_1"}
    run_application(load(target).with_settings(application_id="copy"))
    assert console.json_lines("state", "export", target, "look-pending", *copy) == []
    sent = console.json_lines("consume", "out", "--json", "--app", target)
    assert sorted(each["value"]["row"] for each in sent) == [letter * 2 for letter in "abcdef"]
    produced = "".join(json.dumps({"key": seat, "value": seat, "timestamp": 1}) + "\n" for seat in seats)
    console("produce", "in", "--json-lines", "--app", target, stdin=produced)
    run_application(load(target))
    console("state", "export", target, "wait-store", "--output", f"waiting.{suffix}")
    console("state", "import", target, "wait-store", f"waiting.{suffix}", "--application-id", "third")
    first, second = (
        [{**row, "version": ""} for row in console.json_lines("state", "export", target, "wait-store", *where)]
        for where in ((), ("--application-id", "third"))
    )
    assert len(first) == 6 and second == first


WINDOWED = """
from penstock import Application
from penstock.dsl import StreamsBuilder, TimeWindows, hopping, sliding, tumbling, unlimited

class Unequal(TimeWindows):
    size_ms, grace_ms, form = 15_000, 0, "unequal windows"

    def windows_for(self, timestamp):
        start = timestamp // 20_000 * 20_000
        return [(start, start + 5_000) if timestamp < start + 5_000 else (start + 5_000, start + 20_000)]

builder = StreamsBuilder()
grouped = builder.stream("in").group_by_key()
for name, windows in {
    "tumbling": tumbling("1h", grace="0s"), "hopping": hopping("10s", "4s", grace="0s"),
    "sliding": sliding("7s", grace="1h"), "unlimited": unlimited(start=1_000), "unequal": Unequal(),
}.items():
    grouped.windowed_by(windows).count(name)
application = Application("windowed", builder, engine="embedded", state_serde="str")
"""


@pytest.mark.parametrize("store", ["tumbling", "hopping", "sliding", "unlimited", "unequal"])
def test_a_row_is_of_a_window_that_its_program_has(console: Console, store: str) -> None:
    """Rows came into windows that no record is ever counted in, or into longer ones than they were of."""
    target, copy = "windowed:application", ("--application-id", "copy")
    console.write("windowed.py", WINDOWED)
    console("topics", "create", "in")
    for time in (3_000, 11_000, 26_000):
        console("produce", "in", "-K", ":", "--timestamp", str(time), stdin="a:x\n")
    run(target, subtopologies=1)
    rows = console.json_lines("state", "export", target, store)
    console("state", "import", target, store, lines(console, "rows.jsonl", rows), *copy)
    imported = console.json_lines("state", "export", target, store, *copy)
    assert [{**row, "version": ""} for row in imported] == [{**row, "version": ""} for row in rows] != []
    wrong = {**rows[-1], "end": rows[-1]["end"] - 1}
    other = ("--application-id", "other")
    said = console("state", "import", target, store, lines(console, "bad.jsonl", [rows[0], wrong]), *other, code=2)
    assert f"row 2: its window is from {wrong['start']} to {wrong['end']}, and " in said.stderr
    if store != "sliding":  # one may start at any time
        apart = {**rows[-1], "start": rows[-1]["start"] + 1, "end": min(rows[-1]["end"] + 1, 2**63 - 1)}
        said = console("state", "import", target, store, lines(console, "bad.jsonl", [apart]), *other, code=2)
        assert f"no window of store '{store}' starts at {apart['start']}" in said.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "found '[]'"),
        ("null", "found 'null'"),
        ('"x"', "found '\"x\"'"),
        ("", "found ''"),
        ('{"key": "a",', 'found \'{"key": "a",\' (Expecting property name enclosed in double quotes, column '),
    ],
)
def test_a_line_that_is_no_json_object_is_named(console: Console, line: str, said: str) -> None:
    """The error was the text of an AttributeError, and gave an empty line the number of the next one."""
    counting(console)
    console.write("counts.jsonl", f'{{"key": "a", "value": 10}}\n{line}\n')
    error = console("state", "import", TARGET, "counts", "counts.jsonl", code=2).stderr
    assert f'counts.jsonl, line 2: expected a JSON object with "key" and "value", {said}' in error


def test_large_rows_are_committed_by_their_bytes(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion had 50,000 rows of any size, all in memory."""
    counting(console)
    console.write("texts.py", ODD.replace("value_serde=Careless()", 'value_serde="str"'))
    console("topics", "create", "in")
    rows = [{"key": f"k{number}", "value": "x" * (1_000 if number % 10 else 10_000)} for number in range(100)]
    held: list[int] = []
    commit = first_content._Task.commit_stores

    def watched(self: Any) -> None:
        assert self._state is not None
        self._state.flush()
        held.append(self._state.size_bytes())
        commit(self)

    monkeypatch.setattr(first_content._Task, "commit_stores", watched)
    file, most = lines(console, "rows.jsonl", rows), ("--set", "commit_bytes=20_000")
    assert (
        console("state", "import", "texts:application", "careless", file, *most).stderr == "100 entries of careless\n"
    )
    assert len(held) >= 9 and max(held) < 20_000 + 10_000 + 20_000
    found = console.json_lines("state", "export", "texts:application", "careless")
    assert {each["key"]: each["value"] for each in found} == {each["key"]: each["value"] for each in rows}


def test_an_import_that_was_killed_is_repeated(
    console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Until then no run starts, and what it left is not there."""

    class Killed(BaseException):
        pass

    counting(console)
    file = lines(console, "counts.jsonl", [{"key": key, "value": 10} for key in "abcdef"])
    puts = first_content._put

    def killed(store: Any, row: Any, value: Any) -> None:
        if row["key"] == "e":
            raise Killed
        puts(store, row, value)

    with monkeypatch.context() as patched:
        patched.setattr(first_content, "_PORTION", 2)
        patched.setattr(first_content, "_put", killed)
        with pytest.raises(Killed):
            console("state", "import", TARGET, "counts", file)
    with pytest.raises(
        Exception, match=r"is being restored or filled \(import of counts\), or that was cut short: repeat"
    ):
        run()
    part = "(import of counts), or that was cut short: repeat"
    for command in (("export", TARGET, "counts"), ("get", TARGET, "counts", "a"), ("backup", TARGET, "backups")):
        assert part in console("state", *command, code=1).stderr  # a part is no answer
    console("state", "drop", TARGET, "counts", "--yes")  # it has what the import had written
    other = lines(console, "other.jsonl", [{"key": key, "value": 20} for key in "xyz"])
    console("state", "import", TARGET, "counts", other)
    assert counts(console) == dict.fromkeys("xyz", 20)
    run()


EXPIRING = """
from penstock import Application, Processor, Topology, WALL_CLOCK_TIME, key_value_store

class Keep(Processor):
    def process(self, record):
        pass

stores = [
    key_value_store("by_stream", ttl="1m"),
    key_value_store("stamped", ttl="1m", timestamped=True),
    key_value_store("by_clock", ttl="1h", ttl_clock=WALL_CLOCK_TIME),
]
topology = Topology().add_source("in", "in").add_processor("keep", Keep, "in", stores=stores)
application = Application("expiring", topology)
"""


def test_imported_rows_expire(console: Console) -> None:
    """A TTL after their timestamp, or after the import; they stayed for ever, or were gone at once."""
    console.write("expiring.py", EXPIRING)
    console("topics", "create", "in")
    now = SystemClock().now_ms()
    rows = {
        "by_stream": [{"key": "a", "value": 1}],
        "stamped": [{"key": "a", "value": 1, "timestamp": now}, {"key": "b", "value": 1, "timestamp": now - 59_000}],
        "by_clock": [{"key": "a", "value": 1}],
    }
    for store, content in rows.items():
        console("state", "import", "expiring:application", store, lines(console, f"{store}.jsonl", content))

    def keys(store: str) -> set[str]:
        return {row["key"] for row in console.json_lines("state", "export", "expiring:application", store)}

    def at(timestamp: int) -> None:
        console("produce", "in", "--timestamp", str(timestamp), stdin="x\n")
        run("expiring:application", subtopologies=1)

    assert [keys(store) for store in rows] == [{"a"}, {"a", "b"}, {"a"}]
    at(now + 2_000)
    assert [keys(store) for store in rows] == [{"a"}, {"a"}, {"a"}]
    at(now + 3_600_000)
    assert [keys(store) for store in rows] == [set(), set(), {"a"}]


def test_rows_that_have_expired_are_not_counted_as_imported(console: Console) -> None:
    """By the stream time of the task; they are put, and no query finds them."""
    console.write("expiring.py", EXPIRING)
    console("topics", "create", "in")
    now = SystemClock().now_ms()
    console("produce", "in", "--timestamp", str(now), stdin="x\n")
    run("expiring:application", subtopologies=1)
    rows = [{"key": key, "value": 1, "timestamp": now - age} for key, age in (("a", 0), ("b", 3_600_000), ("c", 1))]
    said = console("state", "import", "expiring:application", "stamped", lines(console, "rows.jsonl", rows)).stderr
    assert said == "2 entries of stamped; 1 row had expired\n"
    found = console.json_lines("state", "export", "expiring:application", "stamped")
    assert [row["key"] for row in found] == ["a", "c"]


ODD = """
from typing import TypedDict
from penstock import Application, Processor, Serde, Topology, key_value_store
from penstock.serdes import of

class Careless(Serde):
    def serialize(self, value):
        return value.encode()

    def deserialize(self, data):
        return data.decode()

    def from_json(self, data):
        return data["name"]

class Keep(Processor):
    def process(self, record):
        self.context.get_store("tagged").put(record.key, {"!tuple": record.value})

Tagged = TypedDict("Tagged", {"!tuple": str})
stores = [
    key_value_store("careless", key_serde="str", value_serde=Careless()),
    key_value_store("any", key_serde="msgpack", value_serde="msgpack"),
    key_value_store("tagged", key_serde="str", value_serde=of(Tagged)),
]
topology = Topology().add_source("in", "in").add_processor("keep", Keep, "in", stores=stores)
application = Application("odd", topology)
"""


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_fields_named_like_tags_are_imported_and_errors_of_serdes_have_a_line(console: Console, suffix: str) -> None:
    console.write("odd.py", ODD)
    console("topics", "create", "in")
    console("produce", "in", "-K", ":", stdin="a:x\n")
    run("odd:application", subtopologies=1)
    console("state", "export", "odd:application", "tagged", "--output", f"tagged.{suffix}")
    copy = ("--application-id", "copy")
    console("state", "import", "odd:application", "tagged", f"tagged.{suffix}", *copy)
    (row,) = console.json_lines("state", "get", "odd:application", "tagged", "a", "--json", *copy)
    assert row["value"] == {"!dict": [["!tuple", "x"]]}
    file = lines(console, "careless.jsonl", [{"key": "a", "value": {"name": "x"}}, {"key": "b", "value": {}}])
    result = console("state", "import", "odd:application", "careless", file, *copy, code=2)
    assert "careless.jsonl, line 2: KeyError('name')" in result.stderr


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("null", [None, {"!null": True}])
def test_a_row_with_a_null_is_refused_before_any_is_written(console: Console, part: str, null: Any) -> None:
    console.write("odd.py", ODD)
    console("topics", "create", "in")
    row = {"key": "b", "value": 1, part: null}
    file = lines(console, "any.jsonl", [{"key": "a", "value": 1}, row])
    said = console("state", "import", "odd:application", "any", file, code=2).stderr
    assert f"row 2: its {part} is null, and no store has one: leave the row out" in said
    console("state", "import", "odd:application", "any", lines(console, "any.jsonl", [{"key": "a", "value": 1}]))
    run("odd:application", subtopologies=1)
