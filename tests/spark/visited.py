"""An application with a visitor, for tests of engines: it writes each key that it visits, and may be killed at one.

`prefix`: what the names of its topics begin with, on a log that tests share.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import Application, Processor, Record, Topology, key_value_store, visitor
from penstock.plugins.engine.program.visits import ask_for_visit, visit_statuses

from .surroundings import Surroundings

KEYS = [f"k{number:02}" for number in range(40)]


class Visited(Processor):
    """Keeps records; a visit answers each key with how often it was visited. At `killed_at` a kill ends the process."""

    def __init__(self, killed: str = "", killed_at: str = "") -> None:
        self.killed, self.killed_at = Path(killed), killed_at

    def init(self, context: Any) -> None:
        super().init(context)
        self.kept, self.visits = context.get_store("kept"), context.get_store("visits")

    def process(self, record: Record) -> None:
        self.kept.put(record.key, record.value)

    @visitor("kept")
    def visit(self, key: str, value: str, argument: Any) -> None:
        if key == self.killed_at and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        visits = int(self.visits.get(key) or 0) + 1
        self.visits.put(key, str(visits))
        self.context.forward(Record(key, f"{argument} {visits}", 0))
        self.context.commit()  # so that a portion has one key: a kill finds a visit in the middle


def topology(prefix: str = "", **options: Any) -> Topology:
    stores = [key_value_store("kept"), key_value_store("visits")]
    made = Topology().add_source("in", f"{prefix}in")
    made.add_processor("keep", Visited, "in", stores=stores, **options)
    return made.add_sink("out", f"{prefix}out", "keep")


def put_all(surroundings: Surroundings, prefix: str = "") -> None:
    surroundings.create(**{f"{prefix}in": 2, f"{prefix}out": 2})
    surroundings.put(f"{prefix}in", [(key, "v", number) for number, key in enumerate(KEYS)])


def are_kept(surroundings: Surroundings, application: Application, prefix: str = "") -> bool:
    """Return whether every record is processed."""
    partitions = surroundings.partitions(f"{prefix}in")
    return surroundings.log.committed(application.id, partitions) == surroundings.log.end_offsets(partitions)


def ask(surroundings: Surroundings, application: Application, number: int) -> Callable[[], bool]:
    """Ask for a visit; return a function that says whether it is over."""
    ask_for_visit(application, surroundings.log, "visit", number, number)

    def is_over() -> bool:
        return all(each.is_over for each in visit_statuses(application, surroundings.log))

    return is_over


def answers(visits: int) -> dict[str, list[str]]:
    """Return what so many visits write, by key."""
    return {key: [f"{number} {number}" for number in range(1, visits + 1)] for key in KEYS}
