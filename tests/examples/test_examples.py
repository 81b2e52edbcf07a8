"""Every numbered example, in the test driver and on an engine, against plain Python that says what should come out."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock import Application
from penstock.plugins.logs.kafka.log import KafkaLog

from ..kafka.clients import delete_own
from .running import EXAMPLES, OnAnEngine, Runner, by_key, in_the_driver, load

NUMBERED = sorted(path.stem for path in EXAMPLES.glob("[0-9]*.py"))
ON_KAFKA = {"kafka": "exactly_once", "kafka at least once": "at_least_once"}


SPARK = [pytest.mark.spark, pytest.mark.xdist_group("spark elsewhere")]
"""Of tests that ask for the session by the name of a parameter: tests/conftest.py does not see that they share it."""
BROKER = [pytest.mark.broker, pytest.mark.xdist_group("broker, test_examples")]


@pytest.fixture(params=["driver", "embedded"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Runner:
    return in_the_driver if request.param == "driver" else OnAnEngine(data_dir=str(tmp_path / "data"))


@pytest.fixture(
    params=["driver", pytest.param("spark", marks=SPARK), *(pytest.param(each, marks=BROKER) for each in ON_KAFKA)]
)
def run_anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runner]:
    """Kafka with the embedded engine: tests/conformance and the demo have Kafka with Spark."""
    if request.param == "driver":
        yield in_the_driver
        return
    settings = {"data_dir": str(tmp_path / "data")}
    if request.param == "spark":
        yield OnAnEngine(request.getfixturevalue("spark"), **settings)
        return
    location = request.getfixturevalue("broker").bootstrap
    log = KafkaLog(location)
    runner = OnAnEngine(**settings, log=f"kafka:{location}", processing_guarantee=ON_KAFKA[request.param])
    yield runner
    delete_own(log, runner.ran, runner.topics)
    log.close()


def test_a_pipe(run: Runner) -> None:
    rows = [(f"k{number % 3}", f"line {number}", number) for number in range(20)] + [
        ("k0", None, 99),
        (None, "no key", 99),
    ]
    found = run(load("01_pipe").application, "lines", rows)["copies"]
    assert Counter((record.key, record.value, record.timestamp) for record in found) == Counter(rows)
    assert by_key(found)["k1"] == [f"line {number}" for number in range(1, 20, 3)]


TEXT = """
    All the world's a stage, and all the men and women merely players;
    They have their exits and their entrances, and one man in his time plays many parts.
""".splitlines()


def test_the_word_count(run_anywhere: Runner) -> None:
    found = run_anywhere(load("02_word_count").application, "text", [(None, line, 1) for line in TEXT * 10])[
        "word-counts"
    ]
    expected = Counter(re.findall("[a-z]+", " ".join(TEXT * 10).lower()))
    assert by_key(found) == {word: list(range(1, count + 1)) for word, count in expected.items()}


def invoice(number: int, customer: str, *lines: tuple[str, int, int], delivery: str = "counter") -> dict[str, Any]:
    return {
        "number": f"I-{number}",
        "customer": customer,
        "loyal": customer != "carl",
        "delivery": delivery,
        "lines": [{"item": item, "quantity": quantity, "cents": cents} for item, quantity, cents in lines],
    }


INVOICES = [
    invoice(1, "anna", ("tea", 2, 350), ("cup", 1, 999), delivery="home"),
    invoice(2, "ben", ("tea", 1, 350)),
    invoice(3, "anna"),  # nothing was bought
    invoice(4, "carl", ("pot", 1, 4000), delivery="home"),
    invoice(5, "anna", ("tea", 3, 350)),
    invoice(6, "ben", ("milk", 1, 99)),
]


@pytest.mark.parametrize("example", ["03_point_of_sale", "07_point_of_sale_dsl"])
def test_the_point_of_sale(run_anywhere: Runner, example: str) -> None:
    rows = [(each["number"], each, number) for number, each in enumerate(INVOICES)]
    found = run_anywhere(load(example).application, "invoices", rows)
    assert sorted(record.value["number"] for record in found["shipments"]) == ["I-1", "I-4"]
    loyalty = by_key(found["loyalty"])
    # Invoices may lie in different partitions: each customer's points add up, in whatever order.
    assert {customer: sum(each["earned"] for each in given) for customer, given in loyalty.items()} == {
        "anna": 26,
        "ben": 3,
    }
    assert {customer: given[-1]["points"] for customer, given in loyalty.items()} == {"anna": 26, "ben": 3}
    assert {each["invoice"]: each["earned"] for given in loyalty.values() for each in given} == {
        "I-1": 16, "I-2": 3, "I-5": 10, "I-6": 0,
    }  # fmt: skip
    assert sorted((record.key, record.value["item"]) for record in found["archive"]) == [
        ("I-1/1", "tea"), ("I-1/2", "cup"), ("I-2/1", "tea"), ("I-4/1", "pot"), ("I-5/1", "tea"), ("I-6/1", "milk"),
    ]  # fmt: skip
    assert all("anna" not in str(record) for record in found["archive"])


def test_stock_prices_by_quarter(run: Runner) -> None:
    example = load("04_stocks")
    rows = list(example.prices())
    assert len(rows) > 500
    found = by_key(run(example.application, "prices", rows)["reports"])
    symbols = {symbol for symbol, _, _ in rows}
    assert set(found) == symbols == {"AAPL", "AMZN", "GOOG", "IBM", "MSFT"}
    for symbol, reports in found.items():
        # The changes of all quarters together are the change of the decade (but for rounding).
        own = [value["price"] for of, value, _ in rows if of == symbol]
        factor = 1.0
        for report in reports:
            factor *= 1 + report["change"]
        last = own.index(reports[-1]["price"], len(own) - 4)
        assert factor == pytest.approx(own[last] / own[0], rel=0.02)
        assert len(reports) in (range(22, 25) if symbol == "GOOG" else range(38, 43))


def test_statistics(run: Runner) -> None:
    rows = [(f"k{number % 4}", float(number * 7 % 31), number) for number in range(40)]
    found = by_key(run(load("05_property_tests").application, "values", rows)["summaries"])
    for key, summaries in found.items():
        own = [value for of, value, _ in rows if of == key]
        assert summaries == [[count, min(own[:count]), max(own[:count])] for count in range(1, len(own) + 1)]


@pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")
def test_a_model(run_anywhere: Runner) -> None:
    example = load("10_model")
    rows = list(example.rows())[:120]
    found = run_anywhere(example.application, "measurements", rows)
    expected = {key: [example.score(value) for own, value, _ in rows if own == key] for key, *_ in rows}
    scores = by_key(found["scores"])
    assert scores == {key: pytest.approx(own, rel=1e-9) for key, own in expected.items()}
    verdicts = {key: ["malignant" if score > 0.5 else "benign" for score in own] for key, own in expected.items()}
    changes = {key: own[:1] if own[0] == own[-1] else own for key, own in verdicts.items()}
    assert by_key(found["alerts"]) == changes


@pytest.mark.parametrize("name", [name for name in dir(load("05_property_tests")) if name.startswith("test_")])
def test_the_laws_of_the_example(name: str) -> None:
    getattr(load("05_property_tests"), name)()


@pytest.mark.parametrize("name", NUMBERED)
def test_every_example_is_an_application_with_its_commands_and_a_place_in_the_list(name: str) -> None:
    module = load(name)
    assert isinstance(module.application, Application)
    assert "Teaches " in module.__doc__.partition("\n")[0]
    assert f"examples/{name}.py" in module.__doc__
    program = module.application.program
    created = re.search(r"topics create (.+?)(?: --|$)", module.__doc__, re.MULTILINE)
    assert created is not None
    assert created[1].split() == [*program.topics(), *program.sink_topics()]
    assert f"({name}.py)" in (EXAMPLES / "README.md").read_text()


def test_the_prices_are_lines_for_penstock_produce() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "04_stocks.py")], check=True, capture_output=True, text=True, timeout=240
    )
    assert done.stdout.splitlines()[0] == '{"key": "MSFT", "value": {"price": 39.81}, "timestamp": 946684800000}'
