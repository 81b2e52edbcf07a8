"""A program with a sink on Spark, which is stopped and started again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.dsl import StreamsBuilder
from penstock.plugins.spark import run
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until

from .programs import rows


def run_twice(directory: Path, spark: Any, trigger: str, program: StreamsBuilder, written: Callable[[], int]) -> int:
    """Run a program twice until each record is written; return how many records there are.

    `written` returns how many of them the target has.
    """
    total = 0
    with Surroundings(directory) as surroundings:
        surroundings.create(**{"in": 3})
        given = surroundings.application("app", program)
        for _ in range(2):
            surroundings.put("in", rows(range(total, total + 40)))
            total += 40
            stop = threading.Event()
            thread = threading.Thread(target=lambda: run(given, trigger, session=spark, stop=stop))  # noqa: B023
            thread.start()
            try:
                wait_until(lambda: not thread.is_alive() or written() >= total, "all is written", 120)  # noqa: B023
            finally:
                stop.set()
                thread.join()
    return total
