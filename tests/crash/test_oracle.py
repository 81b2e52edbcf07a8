"""The oracle finds nothing wrong with what the application does undisturbed, and whatever else is done to its
outputs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from penstock.plugins.engine.task.locations import open_log

from ..processes import opened_workers
from .app import ANSWERS, INPUTS, OUTPUTS, PONGS, REMINDERS, REPARTITION, REPARTITIONS, TICKS, TOTALS
from .oracle import Oracle, Row
from .programs import PROGRAMS, make_application
from .state import content
from .topics import Feeder, Reader, partitions

Stores = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], list[Row], Stores]:
    """Inputs, outputs and stores of a run of several batches in this process."""
    application = make_application(
        str(tmp_path_factory.mktemp("data")), "local:log", "exactly_once", "directory:changelog", "a"
    )
    log = open_log(application.settings)
    feeder, reader = Feeder(application.settings, PROGRAMS["processor"], 1), Reader(log, PROGRAMS["processor"])
    try:
        for topic, count in {**INPUTS, **OUTPUTS}.items():
            log.create_topic(topic, count)
        with opened_workers(application, log) as workers:
            read = partitions({**INPUTS, REPARTITION: REPARTITIONS})
            for batch in range(6):
                feeder.append(150)
                ends = log.end_offsets(read)
                for worker in workers:
                    worker.run_batch(ends, batch * 2_500)
            for worker in workers:
                worker.run_batch(log.end_offsets(read), 20_000)
        assert reader.is_drained()
        reader.read()
    finally:
        feeder.close()
        log.close()
    return (
        reader.inputs,
        reader.outputs,
        content(application.with_settings(state_dir="restored"), PROGRAMS["processor"]),
    )


def test_an_undisturbed_run_is_right(undisturbed: tuple[list[Row], list[Row], Stores]) -> None:
    inputs, outputs, stores = undisturbed
    verdict = Oracle(inputs, outputs).judge({"restored": stores})
    assert verdict.is_good, verdict
    kinds = {(row.topic, " report " in row.value) for row in outputs}
    assert kinds == {
        (ANSWERS, False),
        (TOTALS, False),
        (TOTALS, True),
        (TICKS, False),
        (PONGS, False),
        (REMINDERS, False),
    }
    assert sum(row.value.endswith("None") for row in outputs if row.topic == TOTALS) < 700, "joins find something"


def of(outputs: list[Row], topic: str, number: int, report: bool = False) -> int:
    """Return where the n-th row of a topic is."""
    return [index for index, row in enumerate(outputs) if row.topic == topic and (" report " in row.value) == report][
        number
    ]


def change(topic: str, number: int, report: bool = False, **fields: Any) -> Callable[[list[Row], Stores], None]:
    def apply(outputs: list[Row], stores: Stores) -> None:
        index = of(outputs, topic, number, report)
        outputs[index] = outputs[index]._replace(**{name: each(outputs[index]) for name, each in fields.items()})

    return apply


def without(topic: str, number: int, report: bool = False) -> Callable[[list[Row], Stores], None]:
    return lambda outputs, stores: outputs.pop(of(outputs, topic, number, report)) and None


def twice(topic: str, number: int, report: bool = False) -> Callable[[list[Row], Stores], None]:
    def apply(outputs: list[Row], stores: Stores) -> None:
        outputs.append(outputs[of(outputs, topic, number, report)])

    return apply


def swap_two(outputs: list[Row], stores: Stores) -> None:
    """Two answers to one customer, the wrong way round."""
    first = of(outputs, ANSWERS, 5)
    second = next(index for index in range(first + 1, len(outputs)) if outputs[index].key == outputs[first].key)
    outputs[first], outputs[second] = outputs[second], outputs[first]


def in_store(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[list[Row], Stores], None]:
    return lambda outputs, stores: change(stores[name]) and None


def last_field(value: str) -> Callable[[Row], str]:
    return lambda row: f"{row.value.rpartition(' ')[0]} {value}"


def first_key(entries: dict[str, Any], plain: bool = True) -> str:
    return next(key for key in sorted(entries) if plain == ("/" not in key))


WRONG: dict[str, Callable[[list[Row], Stores], None]] = {
    "an answer lost": without(ANSWERS, 10),
    "an answer twice": twice(ANSWERS, 11),
    "answers out of order": swap_two,
    "a wrong balance": change(ANSWERS, 10, value=last_field("1000000")),
    "an answer to somebody else": change(ANSWERS, 10, key=lambda row: "customer-x"),
    "a total lost": without(TOTALS, 10),
    "a total twice": twice(TOTALS, 11),
    "a wrong version": change(TOTALS, 10, value=last_field("4711")),
    "the global store goes back": change(TOTALS, -1, value=last_field("0")),
    "a report lost": without(TOTALS, 1, report=True),
    "a report twice": twice(TOTALS, 1, report=True),
    "a tick lost": without(TICKS, 0),
    "a tick twice": twice(TICKS, 0),
    "a pong lost": without(PONGS, 3),
    "a pong twice": twice(PONGS, 4),
    "a reminder lost": without(REMINDERS, 3),
    "a reminder twice": twice(REMINDERS, 4),
    "a reminder of somebody else's order": change(REMINDERS, 3, key=lambda row: "customer-x"),
    "a token of another attempt": in_store("tokens", lambda store: store.update({first_key(store): "no such"})),
    "a token lost": in_store("tokens", lambda store: store.pop(first_key(store))),
    "a balance lost": in_store("balances", lambda store: store.pop(first_key(store))),
    "a tick counted twice": in_store("balances", lambda store: store.update({first_key(store, False): 100})),
    "a sale counted twice": in_store("sales", lambda store: store.update({first_key(store): [1, 1]})),
    "progress lost": in_store("progress", lambda store: store.clear()),
    "a version lost": in_store("products", lambda store: store.pop(first_key(store))),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_every_mistake_is_found(undisturbed: tuple[list[Row], list[Row], Stores], mistake: str) -> None:
    inputs, outputs, stores = deepcopy(undisturbed)
    WRONG[mistake](outputs, stores)
    verdict = Oracle(inputs, outputs).judge({"here": stores})
    assert not verdict.is_good
    assert verdict.wrong


def test_what_was_said_to_repeat_may_repeat_and_nothing_else(undisturbed: tuple[list[Row], list[Row], Stores]) -> None:
    inputs, outputs, stores = deepcopy(undisturbed)
    WRONG["an answer twice"](outputs, stores)
    WRONG["a total twice"](outputs, stores)
    said = {outputs[-2].value.split(" ")[0]: 1, outputs[-1].value.split(" ")[2]: 1}
    product = outputs[-1].key
    stores["sales"][product] = [stores["sales"][product][0] + 1, 0]
    verdict = Oracle(inputs, outputs, again=said).judge({"here": stores})
    assert verdict.is_good, verdict
    for mistake in (
        "a pong twice",
        "an answer twice",
        "a balance lost",
        "a token lost",
        "a total lost",
        "a sale counted twice",
    ):
        outputs_too, stores_too = deepcopy(outputs), deepcopy(stores)
        WRONG[mistake](outputs_too, stores_too)
        assert Oracle(inputs, outputs_too, again=said).judge({"here": stores_too}).wrong, mistake


@pytest.mark.parametrize(
    "mistake",
    [
        "an answer lost",
        "a total lost",
        "a pong lost",
        "a reminder lost",
        "an answer to somebody else",
        "a sale counted twice",
    ],
)
def test_at_least_once_nothing_is_lost_either(undisturbed: tuple[list[Row], list[Row], Stores], mistake: str) -> None:
    inputs, outputs, stores = deepcopy(undisturbed)
    for each in ("an answer twice", "a total twice", "a pong twice", "a tick twice"):
        WRONG[each](outputs, stores)
    verdict = Oracle(inputs, outputs, exactly_once=False).judge({"here": stores})
    assert (verdict.lost, verdict.repeated, verdict.wrong) == (0, 3, [])
    WRONG[mistake](outputs, stores)
    assert Oracle(inputs, outputs, exactly_once=False).judge({"here": stores}).wrong
