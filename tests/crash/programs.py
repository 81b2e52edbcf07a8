"""The programs that can be struck, and the application that runs one of them as `Driver` describes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock import Application, Topology
from penstock.plugins.dsl import StreamsBuilder
from penstock.record import OutputBatch

from . import app, dsl_app

ID = "crash"
TRANSACTION_SECONDS = 10
GRACE_SECONDS = 2


class Input(Protocol):
    """Makes input from a seed."""

    def batches(self, count: int) -> Iterable[OutputBatch]:
        """Return so many records for the first topic, and some for the others."""

    def backlog(self) -> Iterable[OutputBatch]:
        """Return what several inputs have at a start."""

    def push(self) -> Iterable[OutputBatch]:
        """Return records that move time on, for the results that wait for it."""


@dataclass(frozen=True)
class Program:
    """A program with its topics, its input, and what its stores have.

    `inputs`, `outputs` and `internal` are numbers of partitions; tasks have no positions in the inputs `unread`.
    `entries` gets the name of a store, the store, and the task.
    """

    make: Callable[[], Topology | StreamsBuilder]
    make_input: Callable[[int], Input]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    internal: Mapping[str, int]
    entries: Callable[[str, Any, str], Mapping[str, Any]]
    unread: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def read(self) -> dict[str, int]:
        """The topics that tasks have positions in."""
        return {topic: count for topic, count in self.inputs.items() if topic not in self.unread} | {**self.internal}


PROGRAMS = {
    "processor": Program(
        app.make_topology, app.Input, app.INPUTS, app.OUTPUTS, app.INTERNAL, app.entries, unread=(app.PRODUCTS,)
    ),
    "batches": Program(
        app.make_batches, app.Input, app.INPUTS, app.OUTPUTS, app.INTERNAL, app.entries, unread=(app.PRODUCTS,)
    ),
    "dsl": Program(
        dsl_app.make_builder, dsl_app.Input, dsl_app.INPUTS, dsl_app.OUTPUTS, dsl_app.INTERNAL, dsl_app.entries,
        settings=dsl_app.SETTINGS,
    ),
}  # fmt: skip


def make_application(
    data: str, log: str, guarantee: str, changelog: str, host: str, backend: str = "lmdb", program: str = "processor"
) -> Application:
    """Return the application; what a host keeps for itself is in directories named after it."""
    chosen = PROGRAMS[program]
    return Application(
        ID,
        chosen.make(),
        data_dir=data,
        log=log,
        state_dir=f"state-{host}",
        checkpoint_dir=f"checkpoint-{host}",
        processing_guarantee=guarantee,
        changelog=changelog,
        store_backend=backend,
        changelog_grace=f"{GRACE_SECONDS}s",
        # Several commits a batch, so that a fault meets more than the end of one.
        commit_interval="50ms",
        fetch_bytes=4_000,
        # A worker is not to be frozen for a minute until Kafka gives its transaction up.
        clients={"producer.transaction.timeout.ms": str(TRANSACTION_SECONDS * 1000)} if log.startswith("kafka") else {},
        **chosen.settings,
    )


def application() -> Application:
    """Return the application as `Driver` describes it in the environment."""
    return make_application(
        *(
            os.environ[f"CRASH_{name}"]
            for name in ("DATA", "LOG", "GUARANTEE", "CHANGELOG", "HOST", "BACKEND", "PROGRAM")
        )
    )
