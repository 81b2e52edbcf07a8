"""Every verb of the DSL with state, from 4 to 7 to 3 partitions, beside one that always had 3."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from penstock import Application, Log
from penstock.plugins.state.transfer.reshard import accept
from penstock.plugins.state.transfer.reshard.plan import with_topics
from tests.rotation import of_today
from tests.upgrades.dsl_programs import PROGRAMS, program

from .runs import lease, new_log, outputs, produce, resharded, run, settings

KEYS = [f"key {number}" for number in range(13)]
SIDES = ("left", "right")
BY_NODE = {"filter, map_values, transform_values of a table", "process_values"}
"""Programs with a store whose key is none of a record's."""
BY_SCHEDULE = {"process"}


def application(verb: str, directory: Path, count: int) -> Application:
    """Return a program that reads topics of `count` partitions."""
    made = Application("shop", program(verb), **settings(directory, "topic:"))
    return with_topics(made, {side: f"{side}-{count}" for side in SIDES})


def log_with(*counts: int) -> Log:
    return new_log(
        {f"{side}-{count}": count for side in SIDES for count in counts} | {"out": 1, "late": 1, "globals": 1}
    )


def produce_rounds(log: Log, count: int, first: int, last: int) -> None:
    """Append records in which all keys go on together; those of the right side are rarer, and a bit earlier."""
    for number in range(first, last):
        for position, key in enumerate(KEYS):
            if (number + position) % 3:
                produce(log, f"left-{count}", [(key, f"l{number}", 2_000 + number * 1_300)])
            if (number * position) % 4 == 1:
                produce(log, f"right-{count}", [(key, f"r{number}", 1_500 + number * 1_300)])
        produce(log, f"right-{count}", [("abc"[number % 3], f"r{number}", 1_500 + number * 1_300)])


def play(app: Application, log: Log, count: int, first: int) -> None:
    """Process six rounds, and leave two; before them rows of the right table that left rows refer to."""
    produce(log, f"right-{count}", [(key, f"r{first}", 1_000 + first * 1_300) for key in "abc"])
    run(app, log)
    produce_rounds(log, count, first, first + 6)
    run(app, log)
    produce_rounds(log, count, first + 6, first + 8)


def produce_last(log: Log) -> None:
    """Append a record for each key that is much later: it lets everything go that waits."""
    for side in SIDES:
        produce(log, f"{side}-3", [(key, f"{side[0]}99", 1_000_000) for key in KEYS])


def sent(log: Log) -> dict[Any, Any]:
    return {key: sorted(rows) for key, rows in outputs(log).items()}


@pytest.mark.parametrize("verb", of_today([each for each in PROGRAMS if each not in BY_NODE | BY_SCHEDULE], 2))
def test_outputs_are_those_of_a_run_that_always_had_the_number(verb: str, tmp_path: Path) -> None:
    log = log_with(4, 7, 3)
    for before, count, first in ((0, 4, 0), (4, 7, 8), (7, 3, 16)):
        app = application(verb, tmp_path, count)
        if before:
            resharded(app, log, count, sources={f"{side}-{before}": f"{side}-{count}" for side in SIDES})
            assert accept(app, log, lease(app, log))
        play(app, log, count, first)
    run(app, log)
    produce_last(log)
    run(app, log)
    assert sent(log) == always(verb)


@cache
def always(verb: str) -> dict[Any, Any]:
    with TemporaryDirectory() as directory:
        log, app = log_with(3), application(verb, Path(directory), 3)
        for first in (0, 8, 16):
            play(app, log, 3, first)
            run(app, log)
        produce_last(log)
        run(app, log)
        return sent(log)
