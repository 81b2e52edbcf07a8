"""stepping_on_spark: an application on Spark that processes records only in a test's steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock import Application
from penstock.plugins.runs.stepping import SteppingDriver, stepping

from .running import RunningApplication

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def stepping_on_spark(
    application: Application, session: SparkSession, *, is_continuous: bool = False
) -> Iterator[SteppingDriver]:
    """Start the query on an existing session; nothing runs before the first step.

    `is_continuous`: the tasks run as with the trigger "continuous", but only within steps.
    """
    with (
        RunningApplication.open(application, session, None) as running,
        stepping(running, running.query(clock_ms=0, step=-1, is_continuous=is_continuous)) as driver,
    ):
        yield driver
