"""The vectors kept here, in the test driver; a sample of each topology on Spark; and descriptions."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.engine.run.embedded import stepping_embedded
from penstock.plugins.spark.runner import stepping_on_spark
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..rotation import of_today
from .backlog import with_backlog
from .differences import KINDS, LISTED, explained
from .log_driver import CaseDriver
from .runner import BUILDERS, Case, TestDriver, check, check_description, difference, load, play, shortened, table
from .simulated_driver import SimulatedDriver, survives

VECTORS = Path(__file__).parent / "vectors"
CASES, DESCRIPTIONS = load(VECTORS)
OPS_ON_SPARK = 6


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: Case) -> None:
    assert check(case, TestDriver).difference == ""


@pytest.mark.parametrize("entry", DESCRIPTIONS, ids=lambda entry: entry["case"])
def test_description(entry: Case) -> None:
    assert check_description(entry).difference == ""


def test_the_page_has_the_table_and_the_reasons() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "conformance.md").read_text()
    families = sorted({case["family"] for case in CASES})
    rows = []
    for family in families:
        names = [case["name"] for case in CASES if case["family"] == family]
        rows.append((family, len(names), len(names), sum(name in LISTED for name in names)))
    assert f"```text\n{table(rows)}\n```" in page
    for kind in KINDS:
        assert textwrap.fill(f"- {kind.reason[0].upper()}{kind.reason[1:]}.", 120, subsequent_indent="  ") in page


def test_every_topology_has_a_case() -> None:
    assert {case["topology"] for case in CASES} == set(BUILDERS)


FIRST_OF_EACH = list({case["family"]: case for case in reversed(CASES)}.values())
"""Of each family, its first case; `python -m tests.conformance DIR --driver spark` runs all."""


@pytest.mark.parametrize("case", of_today(FIRST_OF_EACH, 6), ids=lambda case: case["family"])
def test_sample_on_spark(case: Case, spark: Any) -> None:
    cut = shortened(case, OPS_ON_SPARK)
    driver = CaseDriver(cut, partial(stepping_on_spark, session=spark))
    try:
        assert difference(cut, play(cut, driver)) == ""
    finally:
        driver.close()


@pytest.mark.parametrize("is_continuous", [False, True], ids=["batches", "continuous"])
@pytest.mark.parametrize("case", FIRST_OF_EACH, ids=lambda case: case["family"])
def test_sample_on_the_embedded_engine(case: Case, is_continuous: bool) -> None:
    cut = shortened(case, OPS_ON_SPARK)
    driver = CaseDriver(cut, partial(stepping_embedded, is_continuous=is_continuous))
    try:
        assert difference(cut, play(cut, driver)) == ""
    finally:
        driver.close()


OPS_WITH_FAULTS = 12


@pytest.mark.parametrize("mode", ["batches", "continuous"])
@pytest.mark.parametrize(
    "case", [case for case in FIRST_OF_EACH if survives(case, "batches")], ids=lambda case: case["family"]
)
def test_sample_with_faults_between_any_two_inputs(case: Case, mode: str) -> None:
    cut = shortened(case, OPS_WITH_FAULTS)
    driver = SimulatedDriver(cut, 1, mode)
    try:
        assert difference(cut, play(cut, driver)) == "", "\n".join(driver.story)
    finally:
        driver.close()


ON_KAFKA = ("stateless", "windowed", "join_stream_stream", "join_foreign_key")
OPS_ON_KAFKA = 5


@pytest.mark.broker
@pytest.mark.parametrize(
    "case",
    of_today([case for case in FIRST_OF_EACH if case["family"] in ON_KAFKA], 4),
    ids=lambda case: case["family"],
)
def test_sample_on_kafka(case: Case, spark: Any, broker: KafkaBroker) -> None:
    cut = shortened(case, OPS_ON_KAFKA)
    driver = CaseDriver(cut, partial(stepping_on_spark, session=spark), broker)
    try:
        assert difference(cut, play(cut, driver)) == ""
    finally:
        driver.close()


def test_only_cases_that_depend_on_timestamps_alone_get_a_backlog() -> None:
    names = {case["topology"] for case in FIRST_OF_EACH if with_backlog(case, 8) is not None}
    assert {"stream_table_join", "stream_stream_join", "table_table_join"} <= names
    assert "foreign_key_join" not in names


def test_a_wrong_answer_is_found() -> None:
    case = next(case for case in CASES if case["topology"] == "rewards")
    wrong = [dict(each) for each in case["expected"]["outputs"]]
    wrong[3]["value"] += 1
    found = check({**case, "expected": {**case["expected"], "outputs": wrong}}, TestDriver)
    assert found.difference.startswith("outputs[3]: expected")


LISTED_CASES = [case for case in CASES if case["name"] in LISTED]


def test_all_listed_differences_are_of_cases_that_are_kept_here() -> None:
    assert {case["name"] for case in LISTED_CASES} == set(LISTED)


@pytest.mark.parametrize("case", LISTED_CASES, ids=lambda case: case["name"])
def test_a_listed_difference_is_strict(case: Case) -> None:
    assert check(case, TestDriver).listed == LISTED[case["name"]].reason
    driver = TestDriver(case)
    got = play(case, driver)
    driver.close()
    gone = check({**case, "expected": got}, TestDriver)
    assert "its listed difference is gone" in gone.difference
    more = {**got, "outputs": got["outputs"] + got["outputs"][-1:]}
    assert not explained(case, more, lambda other: got)


def test_command_line_fails_for_a_topology_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text(
        '{"format":1,"family":"new","cases":[{"name":"new/a","family":"new","topology":"nobody_knows","params":{},"inputs":[],"expected":{}}]}'
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "new      1       0\n" in done.stdout
    assert "FAILED new/a: topology 'nobody_knows' is not known" in done.stdout
