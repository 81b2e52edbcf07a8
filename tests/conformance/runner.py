"""Runs one case on a driver and compares what came out with what Kafka Streams answered."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock import Application, PenstockError, skip
from penstock.plugins.testing import TopologyTestDriver
from penstock.record import Windowed
from penstock.settings.application import TopologyBuilder
from penstock.store import StateStore
from penstock.store.kinds.key_value import TimestampedKeyValueStore
from penstock.store.kinds.window import TimestampedWindowStore

from . import aggregations, stateless, steps, stream_joins, table_joins, tables
from .differences import LISTED, explained
from .language import DSL_BUILDERS, settings_for, side_effects
from .topologies import BUILDERS as PROCESSOR_BUILDERS

Case = dict[str, Any]

PROGRAMS = (stateless, aggregations, steps, stream_joins, table_joins, tables)
"""The modules that register the programs written in the DSL."""
BUILDERS: dict[str, Any] = {**PROCESSOR_BUILDERS, **DSL_BUILDERS}


class Driver(Protocol):
    """What a case needs of whatever runs the topology."""

    notes_side_effects: bool
    """Whether the program runs in this process, so that `side_effects` has its calls."""

    def pipe(self, op: dict[str, Any]) -> None: ...
    def backlog(self, records: list[dict[str, Any]]) -> None:
        """Start again, with these inputs in the log; they are in the order in which they must be processed."""
        ...

    def advance_wall_clock(self, ms: int) -> None: ...
    def outputs(self) -> Iterator[dict[str, Any]]:
        """What appeared on sink topics since the last call, each topic's in order."""
        ...

    def store(self, name: str) -> StateStore: ...
    def dropped_records(self) -> int: ...
    def close(self) -> None: ...


@dataclass
class Result:
    """How a case went; `difference` is empty when it passed, and `listed` says why it may differ if it does."""

    case: str
    family: str
    difference: str = ""
    listed: str = ""


def settings_of(case: Case) -> dict[str, Any]:
    config = case.get("config", {})
    settings: dict[str, Any] = {
        "key_serde": "str",
        "value_serde": "json",
        "store_backend": "memory" if config.get("store_type") == "in_memory" else "lmdb",
        "statestore_cache_max_bytes": config.get("cache_max_bytes", 0),
        "topology_optimization": "all" if config.get("optimize") else "none",
    }
    if config.get("timestamp_extractor") == "digits":
        settings["timestamp_extractor"] = steps.digits_or_later
    if config.get("processing_exception_handler") == "continue":
        settings["processing_handler"] = skip
    return settings


def application_of(case: Case) -> Application:
    interval = case.get("config", {}).get("outer_join_emit_interval_ms", 0)
    params = {**case["params"], **({"emit_interval_ms": interval} if interval else {})}
    return Application("conformance", BUILDERS[case["topology"]](params), **settings_of(case))


def headers_of(op: dict[str, Any]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, None if value is None else value.encode()) for name, value in op.get("headers", ()))


def output_of(topic: str, record: Any) -> dict[str, Any]:
    key = record.key._asdict() if isinstance(record.key, Windowed) else record.key
    output = {"topic": topic, "key": key, "value": record.value, "ts": record.timestamp}
    if record.headers:
        output["headers"] = [[name, None if data is None else data.decode()] for name, data in record.headers]
    return output


class TestDriver:
    """Runs a case in the TopologyTestDriver."""

    __test__ = False
    notes_side_effects = True
    driver_type = TopologyTestDriver

    def __init__(self, case: Case) -> None:
        initial = case.get("config", {}).get("initial_wall_clock_ms", 0)
        self._driver = self.driver_type(application_of(case), initial_wall_clock_ms=initial, **settings_of(case))

    def pipe(self, op: dict[str, Any]) -> None:
        self._driver.pipe(op["topic"], op["key"], op["value"], op["ts"], headers_of(op))

    def backlog(self, records: list[dict[str, Any]]) -> None:
        for op in records:
            self.pipe(op)

    def advance_wall_clock(self, ms: int) -> None:
        self._driver.advance_wall_clock(f"{ms}ms")

    def outputs(self) -> Iterator[dict[str, Any]]:
        for topic in self._driver.output_topics():
            for record in self._driver.read_all(topic):
                yield output_of(topic, record)

    def store(self, name: str) -> StateStore:
        store: StateStore = self._driver.store(name)
        return store

    def dropped_records(self) -> int:
        return self._driver.dropped_records()

    def close(self) -> None:
        self._driver.close()


def play(case: Case, driver: Driver) -> dict[str, Any]:
    """Perform the inputs and return what happened in the form of a case's `expected`."""
    outputs: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    error: dict[str, Any] | None = None
    for number, op in enumerate(case["inputs"]):
        try:
            if op["op"] == "pipe":
                driver.pipe(op)
            elif op["op"] == "backlog":
                driver.backlog(op["records"])
            else:
                driver.advance_wall_clock(op["ms"])
        except PenstockError as raised:
            error = {"op": number, "message": str(raised)}
        outputs += ({"op": number, **output} for output in driver.outputs())
        calls += ({"op": number, **call} for call in side_effects)
        side_effects.clear()
        if error is not None:
            return {"outputs": outputs, "error": error, "side_effects": calls}
    stores = {
        name: dump(driver.store(name), wanted["type"], case)
        for name, wanted in case["expected"].get("stores", {}).items()
    }
    metrics = {"dropped_records": driver.dropped_records()}
    seen = calls if driver.notes_side_effects else case["expected"].get("side_effects")
    return {"outputs": outputs, "stores": stores, "metrics": metrics, "side_effects": seen}


def dump(store: Any, kind: str, case: Case) -> dict[str, Any]:
    """Return a store's content in the form of the vectors."""
    if kind == "versioned":
        return {"type": kind, "entries": [row for key in input_keys(case) for row in versions(store, key, case)]}
    if kind == "window":
        with store.all() as entries:
            rows = [[key._asdict(), *value_and_timestamp(store, value)] for key, value in entries]
        return {"type": kind, "entries": sorted(rows, key=lambda row: tuple(row[0].values()))}
    if kind == "session":
        with store.fetch_range(None, None) as entries:
            rows = [[key._asdict(), value] for key, value in entries]
        return {"type": kind, "entries": sorted(rows, key=lambda row: tuple(row[0].values()))}
    if kind != "kv":
        return {"type": f"{kind} (this runner cannot dump it yet)"}
    with store.all() as entries:
        return {"type": "kv", "entries": [[key, *value_and_timestamp(store, value)] for key, value in entries]}


def input_keys(case: Case) -> list[str]:
    return sorted({op["key"] for op in records(case) if op.get("key") is not None})


def records(case: Case) -> list[dict[str, Any]]:
    """Return the inputs of a case that are records."""
    return [each for op in case["inputs"] for each in op.get("records", [op]) if each["op"] == "pipe"]


def versions(store: Any, key: str, case: Case) -> list[list[Any]]:
    """Return a key's current version, and those that are found by the timestamps of the inputs, newest first."""
    times = {op["ts"] for op in records(case)}
    found = [version for version in (store.get(key), *(store.get(key, time) for time in times)) if version is not None]
    by_timestamp = {version.timestamp: version.value for version in found}
    return [[key, value, timestamp] for timestamp, value in sorted(by_timestamp.items(), reverse=True)]


def value_and_timestamp(store: Any, value: Any) -> tuple[Any, ...]:
    """Return what the vectors have of a value: it alone, or with its timestamp if the store keeps one."""
    timestamped = isinstance(store, TimestampedKeyValueStore | TimestampedWindowStore)
    return (value.value, value.timestamp) if timestamped else (value,)


def difference(case: Case, got: dict[str, Any]) -> str:
    """Return the first difference between what happened and what was recorded, or nothing."""
    expected, alternative = case["expected"], case.get("alt_expected") or {}
    wanted_error, error = expected.get("error"), got.get("error")
    if (wanted_error and wanted_error["op"]) != (error and error["op"]):
        return f"error: expected {wanted_error}, got {error}"
    for part in ("outputs", "stores", "metrics", "side_effects"):
        if part not in expected:
            continue
        answers = [expected[part], *([alternative[part]] if part in alternative else [])]
        if part == "outputs" and alternative.get("order_only"):
            answers = [sorted(answer, key=repr) for answer in answers]
            got = {**got, part: sorted(got[part], key=repr)}
        if got.get(part) not in answers:
            return first_difference(part, expected[part], got.get(part))
    return ""


def first_difference(part: str, expected: Any, got: Any) -> str:
    if isinstance(expected, list) and isinstance(got, list):
        for number, (wanted, found) in enumerate(zip(expected, got, strict=False)):
            if wanted != found:
                return f"{part}[{number}]: expected {json.dumps(wanted)}, got {json.dumps(found)}"
        return f"{part}: expected {len(expected)}, got {len(got)}: " + json.dumps(
            expected[len(got)] if len(expected) > len(got) else got[len(expected)]
        )
    return f"{part}: expected {json.dumps(expected)}, got {json.dumps(got)}"


def changed(case: Case, inputs: list[Any], how: str) -> Case:
    """Return a case with other inputs, and with what the test driver (which passes the case itself) answers as what is
    expected."""
    other: Case = {**case, "name": f"{case['name']} ({how})", "inputs": inputs}
    driver = TestDriver(other)
    other["expected"] = play(other, driver)
    driver.close()
    return other


def shortened(case: Case, ops: int) -> Case:
    """Return a case cut after a few ops; the expected outputs are those of the case, if it does not differ as
    listed."""
    cut = changed(case, case["inputs"][:ops], f"first {ops}")
    if case["name"] not in LISTED:
        cut["expected"]["outputs"] = [each for each in case["expected"]["outputs"] if each["op"] < ops]
    return cut


def check(case: Case, make_driver: Any) -> Result:
    """Run one case on the driver that `make_driver(case)` makes."""
    result = Result(case["name"], case["family"])
    if case["topology"] not in BUILDERS:
        result.difference = f"topology {case['topology']!r} is not known to this runner"
        return result

    def replay(each: Case) -> dict[str, Any]:
        driver = make_driver(each)
        try:
            return play(each, driver)
        finally:
            driver.close()

    try:
        got = replay(case)
        result.difference = difference(case, got)
        if result.difference:
            result.listed = explained(case, got, replay)
            result.difference = "" if result.listed else result.difference
        elif case["name"] in LISTED:
            result.difference = f"its listed difference is gone ({LISTED[case['name']].reason}); take it off the list"
    except Exception as error:
        result.difference = f"{type(error).__name__}: {error}"
    return result


def check_description(entry: Case, build: Any = None) -> Result:
    """Build a topology, with `build` in place of its own builder, and compare its `describe()` with Kafka's."""
    result = Result(f"{entry['case']} (describe)", entry["case"].partition("/")[0])
    build = build or BUILDERS.get(entry["topology"])
    if build is None:
        result.difference = f"topology {entry['topology']!r} is not known to this runner"
        return result
    try:
        made = build(entry["params"])
        if isinstance(made, TopologyBuilder):
            made = made.build(settings_for(entry.get("optimize", False)))
        got = made.build().describe()
    except Exception as error:
        result.difference = f"{type(error).__name__}: {error}"
        return result
    # The class of a function is named by each language.
    wanted_text, got = (
        re.sub(r"extractor class: [^)]*", "extractor class: ?", each) for each in (entry["describe"], got)
    )
    if got != wanted_text:
        lines = zip([*wanted_text.split("\n"), "(end)"], [*got.split("\n"), "(end)"], strict=False)
        number, (missing, found) = next((n, pair) for n, pair in enumerate(lines, 1) if pair[0] != pair[1])
        result.difference = f"line {number}: expected {missing!r}, got {found!r}"
    return result


def load(folder: Path) -> tuple[list[Case], list[Case]]:
    """Return the cases and the descriptions in a folder of vector files."""
    cases: list[Case] = []
    descriptions: list[Case] = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        cases += content.get("cases", [])
        descriptions += content.get("descriptions", [])
    return cases, descriptions


def by_family(results: list[Result]) -> dict[str, list[Result]]:
    grouped: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        grouped[result.family].append(result)
    return grouped


def table(rows: list[tuple[str, int, int, int]]) -> str:
    """Return a table of (family, cases, passed, differing as listed), with their sum."""
    total = ("all", sum(row[1] for row in rows), sum(row[2] for row in rows), sum(row[3] for row in rows))
    width = max(len(str(row[0])) for row in [*rows, total])
    lines = [f"{'family':{width}}  cases  passed  differing as listed"]
    for family, cases, passed, listed in [*rows, total]:
        lines.append(f"{family:{width}}  {cases:5}  {passed:6}  {listed or '':>19}".rstrip())
    return "\n".join(lines)
