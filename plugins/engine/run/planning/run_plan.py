"""Plan: the application as the planners of its batches read it, written once for a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock import duration_ms
from penstock.plugins.engine.program.lag import offset_resets
from penstock.plugins.engine.program.preparation import Prepared
from penstock.support.private_files import write_private_text

from ..settings import MAX_RECORDS_PER_BATCH, PUNCTUATION_INTERVAL

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
