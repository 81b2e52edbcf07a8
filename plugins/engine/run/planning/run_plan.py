"""Plan: the application as the planners of its batches read it. Rests: how long they wait in quiet times."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock import duration_ms
from penstock.plugins.engine.program.lag import offset_resets
from penstock.plugins.engine.program.preparation import Prepared
from penstock.support.private_files import write_private_text

from ..settings import MAX_RECORDS_PER_BATCH, PUNCTUATION_INTERVAL
from .control import Orders

_FILE = "plan"


@dataclass(frozen=True)
class Plan:
    """The application as the source reads it.

    `tasks`: (topic, partition) pairs by task id. `internal`: topics of the application's own. `resets`: how topics are
    first read (`offset_reset`) that are not read from their start. `globals`: topics of global stores. `control`: the
    run's name, on Spark the directory of its orders. `interval_ms`: of Spark's trigger; 0 for batches back to back.
    `is_continuous`: batches renew the hosts' leases. `log_level`: which log lines of the source reach the driver.
    """

    application_id: str
    tasks: Mapping[str, Sequence[tuple[str, int]]]
    internal: Sequence[str]
    resets: Mapping[str, str]
    globals: Sequence[str]
    parallelism: int
    max_records: int | None
    punctuation_interval_ms: int
    control: str
    interval_ms: int = 0
    is_continuous: bool = False
    log_level: int = logging.WARNING
    upstream: Mapping[str, Sequence[int]] = field(default_factory=dict)
    holding: Sequence[int] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        prepared: Prepared,
        parallelism: int,
        control: str,
        interval_ms: int = 0,
        *,
        is_continuous: bool = False,
        drains_loops: bool = False,
        log_level: int = logging.WARNING,
    ) -> Plan:
        """Return the plan of a prepared application."""
        application, assignment = prepared.application, prepared.assignment
        settings = application.settings
        loops = {*application.program.sink_topics()} & {*assignment.partitions()}
        return cls(
            application.id,
            {task: [(topic, partition) for topic, partition in each] for task, each in prepared.tasks().items()},
            [*assignment.internal, *(loops if drains_loops else ())],
            offset_resets(application, assignment),
            sorted({each.topic for each in assignment.globals}),
            parallelism,
            MAX_RECORDS_PER_BATCH.of(settings),
            duration_ms(PUNCTUATION_INTERVAL.of(settings)),
            control,
            interval_ms,
            is_continuous,
            log_level,
            {str(number): sorted(above) for number, above in application.program.upstream().items()},
            sorted(application.program.holding()),
        )

    def write(self) -> None:
        """Write this to its file beside the control file.

        A Spark option would be sent to Spark's workers in each batch; this text grows with the tasks.
        """
        write_private_text(Path(self.control) / _FILE, json.dumps(asdict(self)))

    @classmethod
    def read(cls, control: str) -> Plan:
        """Return the plan that `write` wrote. `control`: the directory of the control files."""
        return cls(**json.loads((Path(control) / _FILE).read_text()))


SHORTEST_REST, LONGEST_REST = 0.005, 1.0
_SHARE = 20
"""A rest is at most this part of the quiet time before it: what comes then is late by a twentieth of it."""
_WORK_SHARE = 50
"""A rest is at least so many times as long as a look at the log takes, so that looking costs 2 % of a core at most."""
_MOST_SECONDS = 2.0
_TURN_SECONDS, _TURNS = 0.05, 5
"""How long a rest waits between two looks at the control file at least, and how often a long rest looks at it."""


def rest_seconds(
    quiet: float, look: float = 0.0, shortest: float = SHORTEST_REST, longest: float = LONGEST_REST
) -> float:
    """Return for how long to rest after `quiet` seconds without work, where a look at the log takes `look` seconds."""
    return max(shortest, min(longest, quiet / _SHARE), min(_MOST_SECONDS, quiet / _SHARE, _WORK_SHARE * look))


class Rests:
    """The planner's rests. `wait` waits, and `seconds` is a clock that never goes back.

    `shortest`: the least length (seconds) of a rest. A change of the control file ends a rest early.
    """

    def __init__(
        self,
        control: Orders,
        wait: Callable[[float], object],
        seconds: Callable[[], float],
        shortest: float = SHORTEST_REST,
    ) -> None:
        self._control = control
        self._wait = wait
        self._seconds = seconds
        self._shortest = shortest
        self._quiet_since: float | None = None

    def rest(self, look: float, due_in_ms: int | None) -> None:
        """Wait, at most until the control file changes or `due_in_ms` is over. `look`: seconds that a look takes."""
        now = self._seconds()
        if self._quiet_since is None:
            self._quiet_since = now
        usual = rest_seconds(now - self._quiet_since, look)
        left = max(usual, self._shortest)
        if due_in_ms is not None:
            left = min(left, max(0.001, due_in_ms / 1000))
        turn = max(_TURN_SECONDS, min(usual, left) / _TURNS)
        while left > 0 and not self._control.has_changed():
            self._wait(min(left, turn))
            left -= turn

    def end(self) -> None:
        """Note that there is work."""
        self._quiet_since = None
