"""The oracle of the DSL program finds nothing wrong with what it does undisturbed, and whatever else is done to its
outputs and stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.plugins.engine.task.locations import open_log

from ..processes import opened_workers
from .dsl_app import (
    CLICKS,
    COUNTS,
    FINAL,
    INPUTS,
    LATE,
    LATE_CLICKS,
    OUTPUTS,
    PAIRS,
    PLACED,
    PROFILES,
    READ,
    SESSIONS,
    WAITED,
)
from .dsl_oracle import DslOracle
from .oracle import Row
from .programs import PROGRAMS, make_application
from .state import content
from .topics import Feeder, Reader

Stores = dict[str, dict[str, Any]]
Run = tuple[list[Row], list[Row], Stores]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Inputs, outputs and stores of a run of several batches in this process, with a pause that closes sessions."""
    program = PROGRAMS["dsl"]
    application = make_application(
        str(tmp_path_factory.mktemp("data")), "local:log", "exactly_once", "directory:changelog", "a", program="dsl"
    )
    log = open_log(application.settings)
    feeder, reader = Feeder(application.settings, program, 1), Reader(log, program)
    now = 0
    try:
        for topic, count in {**INPUTS, **OUTPUTS}.items():
            log.create_topic(topic, count)
        with opened_workers(application, log) as workers:

            def run(batches: int) -> None:
                nonlocal now
                for _ in range(batches):
                    now += 700
                    ends = log.end_offsets([each for worker in workers for each in worker.partitions])
                    for worker in workers:
                        worker.run_batch({each: ends[each] for each in worker.partitions}, now)

            for batch in range(8):
                feeder.append(60)
                if batch == 6:
                    feeder.backlog()
                run(12 if batch == 3 else 1)
            for _ in range(3):
                run(3)
                feeder.push()
            run(12)
        assert reader.is_drained()
        reader.read()
    finally:
        feeder.close()
        log.close()
    return reader.inputs, reader.outputs, content(application.with_settings(state_dir="restored"), program)


def test_an_undisturbed_run_is_right(undisturbed: Run) -> None:
    inputs, outputs, stores = undisturbed
    oracle = DslOracle(inputs, outputs)
    assert not oracle.awaits_time
    assert not oracle.awaits_rest
    verdict = oracle.judge({"restored": stores})
    assert verdict.is_good, verdict
    assert Counter(row.topic for row in outputs).keys() == OUTPUTS.keys(), "everything was exercised"
    assert any(row.value.endswith(" -") for row in outputs if row.topic == PAIRS)
    assert any(row.value.startswith("- ") for row in outputs if row.topic == PAIRS)
    assert len(stores["closing-store"]) > 0


def copy_of(run: Run) -> Run:
    inputs, outputs, stores = run
    return inputs, list(outputs), {name: dict(entries) for name, entries in stores.items()}


def of(outputs: list[Row], topic: str, number: int) -> int:
    """Return where the n-th row of a topic is."""
    return [index for index, row in enumerate(outputs) if row.topic == topic][number]


Mistake = Callable[[list[Row], Stores], Any]


def change(topic: str, number: int, **fields: Callable[[Row], Any]) -> Mistake:
    def apply(outputs: list[Row], stores: Stores) -> None:
        index = of(outputs, topic, number)
        outputs[index] = outputs[index]._replace(**{name: each(outputs[index]) for name, each in fields.items()})

    return apply


def lost(topic: str, number: int) -> Mistake:
    return lambda outputs, stores: outputs.pop(of(outputs, topic, number))


def twice(topic: str, number: int) -> Mistake:
    return lambda outputs, stores: outputs.append(outputs[of(outputs, topic, number)])


def lost_alone(outputs: list[Row], stores: Stores) -> None:
    outputs.remove(next(row for row in outputs if row.topic == PAIRS and row.value.endswith(" -")))


def last_count_lost(outputs: list[Row], stores: Stores) -> None:
    last = {(row.partition, row.key): index for index, row in enumerate(outputs) if row.topic == COUNTS}
    outputs.pop(min(last.values()))


def table_goes_back(outputs: list[Row], stores: Stores) -> None:
    """A click finds no row of its user, and the one before it found one."""
    index = max(
        index
        for index, row in enumerate(outputs)
        if row.topic == PLACED
        and not row.value.endswith(" nowhere")
        and any(
            each.key == row.key and each.topic == PLACED and not each.value.endswith(" nowhere")
            for each in outputs[:index]
        )
    )
    outputs[index] = outputs[index]._replace(value=f"{outputs[index].value.split(' ')[0]} 0 nowhere")


def another_row_of_its_user(outputs: list[Row], stores: Stores) -> None:
    """A click that was there at the start, with its row, has the one that was there before."""
    index = max(index for index, row in enumerate(outputs) if row.topic == PLACED and row.value.startswith(WAITED))
    before = [each for each in outputs[:index] if each.topic == PLACED and each.key == outputs[index].key][-1]
    serial, _, _ = outputs[index].value.partition(" ")
    outputs[index] = outputs[index]._replace(value=f"{serial} {before.value.partition(' ')[2]}")


def in_store(name: str, value: Any) -> Mistake:
    return lambda outputs, stores: stores[name].update({sorted(stores[name])[-1]: value})


EVERY = (PLACED, READ, LATE, FINAL, SESSIONS, LATE_CLICKS, PAIRS)
WRONG: dict[str, Mistake] = {
    **{f"{topic}: a row lost": lost(topic, 1) for topic in EVERY},
    **{f"{topic}: a row twice": twice(topic, 1) for topic in (*EVERY, COUNTS)},
    **{
        f"{topic}: another's headers": change(topic, 1, headers=lambda row: (("serial", b"c0"),))
        for topic in (*EVERY, COUNTS)
    },
    **{
        f"{topic}: another time": change(topic, 1, timestamp=lambda row: row.timestamp - 1)
        for topic in (*EVERY, COUNTS)
    },
    **{f"{topic}: another key": change(topic, 1, key=lambda row: "nobody") for topic in (*EVERY, COUNTS, PROFILES)},
    "the last count of a window lost": last_count_lost,
    "what was alone lost": lost_alone,
    "a count too high": change(FINAL, 1, value=lambda row: f"{row.value}0"),
    "the table goes back": table_goes_back,
    "a click that did not wait for its row": another_row_of_its_user,
    "a session without one of its clicks": change(SESSIONS, 1, value=lambda row: row.value.rpartition(" ")[0]),
    "the last row of a user lost": lambda outputs, stores: outputs.pop(of(outputs, PROFILES, -1)),
    "a row of a table that never was": change(PROFILES, 1, value=lambda row: "1 region-0 0"),
    "a user lost in the store": lambda outputs, stores: stores["users"].popitem(),
    "an old region in the store": in_store("regions", "0"),
    "a count too high in the store": in_store("counts", 4711),
    "an open window lost in the store": lambda outputs, stores: stores["closing-store"].popitem(),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_every_mistake_is_found(undisturbed: Run, mistake: str) -> None:
    inputs, outputs, stores = copy_of(undisturbed)
    WRONG[mistake](outputs, stores)
    assert DslOracle(inputs, outputs).judge({"here": stores}).wrong


def test_what_is_missing_is_waited_for(undisturbed: Run) -> None:
    inputs, outputs, stores = copy_of(undisturbed)
    newest = max((row for row in inputs if row.topic == CLICKS), key=lambda row: row.offset)
    assert DslOracle([*inputs, newest._replace(value="c-new")], outputs).awaits_rest
    lost_alone(outputs, stores)
    assert DslOracle(inputs, outputs).awaits_time
