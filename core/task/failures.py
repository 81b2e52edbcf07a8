"""Failures: passes a record's error to the handler of its stage, and carries out the handler's decision."""

from __future__ import annotations

import logging
import reprlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

from ..clock import duration_ms
from ..errors import (
    MissingPackageError,
    PenstockError,
    ProcessingError,
    ProductionError,
    SerdeError,
    SerdeUnavailableError,
    TopologyError,
)
from ..processor import Fail, Failure, Handler, NodeMetrics, RetryAfter, SendToDeadLetter, Skip, Stage, needs_no_record
from ..program.messages import FORWARD, describe_cause, describe_error, describe_place, no_context
from ..record import Record, RecordBatch, Windowed
from ..settings.settings import Settings
from ..store.record_cache import SourceRecord
from ..support.repeats import Repeats
from .progress import TaskProgress, source_at

_log = logging.getLogger("penstock.task")

_SHOWN_BYTES = 1_000
"""Bytes of a key or value that a log line for debugging shows."""

RECORD_ERRORS = (Exception, SystemExit)
"""Errors that fail a record, and `sys.exit`, which ends the run with an error. Uncaught, it would end the worker
without a message, and Spark would start another, for ever."""

_PLAIN_KEYS = (type(None), str, bytes, bool, int, float, Decimal, UUID, datetime, date)
_NO_RECORD = Record(None, None, -1)
"""In place of a record, for an error outside of `process`."""
SKIPPED = "skipped"
"""Why a record is dropped that a node failed for."""
EXPECTED_RECORD = "expected a Record, for instance record.with_value(...)"

FailureKey = tuple[Stage, str, str | None, int | None, int | None, Hashable]
"""The identity of a failure: stage, node, and topic, partition and offset of the source record, or else the failed
call.
"""


class RetryRequested(PenstockError):
    """A handler asked to process again after `delay_ms`; the driver of the task goes back to the last commit."""

    def __init__(self, failure: Failure, delay_ms: int, what: Hashable = None) -> None:
        super().__init__(f"retry asked for by the {failure.stage.value} handler of node {failure.node!r}")
        self.failure = failure
        self.delay_ms = delay_ms
        self.key = key_of(failure, what)
        """The key by which the task asks `attempt`."""


class _Exited(ProcessingError):
    """In place of a SystemExit, which is no Exception."""


class Decided(PenstockError):
    """An error that a handler has already decided about: it goes up through every node untouched."""


class DeserializationFailed(Decided, SerdeError):
    """A record could not be read, and the handler said to fail."""


class ProcessingFailed(Decided, ProcessingError):
    """A node could not process a record, and the handler said to fail."""


class ProductionFailed(Decided, ProductionError):
    """A record could not be produced, and the handler said to fail."""


_FAILED: Mapping[Stage, type[Decided]] = {
    Stage.DESERIALIZATION: DeserializationFailed,
    Stage.PROCESSING: ProcessingFailed,
    Stage.PRODUCTION: ProductionFailed,
}


class Failures:
    """The failures of one task.

    Each method returns when the record is to be dropped at the node that failed, and raises otherwise: RetryRequested,
    or an error derived from `Decided`. `attempt` answers how often a failure was met, this time included.
    `send_dead_letter(topic, failure)` puts the source record into the task's outputs.
    """

    def __init__(
        self,
        task_id: str,
        application_id: str,
        settings: Settings,
        progress: TaskProgress,
        metrics: Mapping[str, NodeMetrics],
        repeats: Repeats | None,
        attempt: Callable[[FailureKey], int],
        send_dead_letter: Callable[[str, Failure], None],
    ) -> None:
        self._task_id = task_id
        self._application_id = application_id
        self._settings = settings
        self._progress = progress
        self._metrics = metrics
        self._repeats = repeats or Repeats(lambda: progress.wall_clock)
        self._attempt = attempt
        self._send_dead_letter = send_dead_letter
        self.skipped = Counter[str]()
        """Number of records of each node that it failed for, and that were skipped."""
        self.find_failed: Callable[[str, object, Exception | SystemExit], tuple[str, object]] = _as_caught
        """Finds the failed node and its record, among a node and the children that it calls without an edge."""

    @property
    def need_sources(self) -> bool:
        """Whether a handler of forwarded cache updates may look at a source record, or send it away."""
        return not (
            needs_no_record(self._settings.processing_handler) and needs_no_record(self._settings.production_handler)
        )

    def deserialization(self, batch: RecordBatch, column: int, node: str, error: Exception | SystemExit) -> None:
        """Ask about the record at index `column` of a batch, which source `node` cannot read."""
        failure = self._failure(Stage.DESERIALIZATION, node, _as_exception(error), source_at(batch, column))
        self._decide(failure, self._settings.deserialization_handler, "deserialization")

    def processing(self, node: str, record: object, error: Exception | SystemExit) -> None:
        """Ask the handler about an exception that `node`, or a child that it calls, raised for `record`."""
        node, record = self.find_failed(node, record, error)
        self._processing(node, record, error)
        self.skipped[node] += 1

    def answered(self, node: str, error: Exception | SystemExit, attempt: int, handler: Handler | None) -> None:
        """Ask the handler about a call of `node` that failed at its `attempt`, for the record of the progress."""
        failure = self._failure(Stage.PROCESSING, node, _as_exception(error), self._progress.source())
        self._decide(failure, handler or self._settings.processing_handler, SKIPPED, attempt=attempt)
        self.skipped[node] += 1

    def batch(self, node: str, error: Exception | SystemExit) -> NoReturn:
        """Go back to the last commit: `node` raised an exception for several records, and gets each alone after that.

        The active record is one of them. Raises RetryRequested, or the error that no handler is asked about.
        """
        if isinstance(error, (RetryRequested, Decided)):
            raise error
        failed = _as_exception(error)
        failure = self._failure(Stage.PROCESSING, node, failed, self._progress.source())
        if isinstance(failed, _Exited) or _unavailable(failed) is not None:
            self._decide(failure, self._settings.processing_handler, SKIPPED)
        retry = RetryRequested(failure, 0)
        retry.key = _key_of_batch(node)
        raise retry from failed

    def was_batch(self, node: str) -> bool:
        """Return whether a batch of a node failed since the last commit: each record is to be processed alone."""
        return self._attempt(_key_of_batch(node)) > 1

    def outside_records(self, node: str, error: Exception | SystemExit) -> None:
        """Ask about an exception that `node` raised in a punctuator, a timer or a visitor."""
        self._processing(node, _NO_RECORD, error)

    def late(self, node: str, key: object, timestamp: int, error: Exception | SystemExit) -> None:
        """Ask the handler about an exception for a held-back record of `node`; where the record was read is unknown."""
        if isinstance(error, (RetryRequested, Decided)):
            raise error
        failure = self._failure(Stage.PROCESSING, node, _as_exception(error), None)
        failure = replace(failure, timestamp=timestamp, had_waited=True)
        what = timestamp, _text_of_key(key)
        self._decide(failure, self._settings.processing_handler, SKIPPED, what=what)

    def _processing(self, node: str, record: object, error: Exception | SystemExit) -> None:
        if isinstance(error, (RetryRequested, Decided)):
            raise error
        failed = _not_a_record(record) or _as_exception(error)
        failure = self._failure(Stage.PROCESSING, node, failed, self._progress.source())
        self._decide(failure, self._settings.processing_handler, SKIPPED)

    def production(self, node: str, topic: str, record: object, error: Exception) -> None:
        """Ask about a record that sink `node` cannot write to `topic`."""
        if isinstance(error, (RetryRequested, Decided)):
            raise error
        if not isinstance(error, PenstockError):
            error = SerdeError(f"{type(error).__name__}: {error}")
        failed = _not_a_record(record) or error
        failure = self._failure(Stage.PRODUCTION, node, failed, self._progress.source())
        self._decide(failure, self._settings.production_handler, "production", f" while producing to topic {topic!r}")

    def sink(self, node: str, target: str, record: object, error: Exception) -> None:
        """Ask about a record that the target of external sink `node` has refused."""
        failure = self._failure(Stage.PRODUCTION, node, error, self._progress.source())
        self._decide(failure, self._settings.production_handler, "production", f" while writing to {target}")

    def _failure(self, stage: Stage, node: str, error: Exception, source: SourceRecord | None) -> Failure:
        """Return the failure of a source record; None: that of a punctuator, or of a record that had waited."""
        return Failure(stage, error, node, self._task_id, *(source or (None, None, None)))

    def _decide(
        self,
        failure: Failure,
        handler: Handler,
        reason: str,
        doing: str = "",
        *,
        what: Hashable = None,
        attempt: int | None = None,
    ) -> None:
        if (cause := _unavailable(failure.error)) is not None:
            where = describe_place(failure, self._application_id, doing)
            is_missing = isinstance(cause, MissingPackageError)
            kind: type[PenstockError] = MissingPackageError if is_missing else _FAILED[failure.stage]
            raise kind(
                f"{where}: {describe_error(failure.error)}. The record is not at fault, so no handler was asked. Start "
                f"again when it {'is installed' if is_missing else 'answers'}: nothing since the last commit counts, "
                "and nothing is lost"
            ) from failure.error
        where = describe_place(failure, self._application_id, doing)
        if isinstance(failure.error, _Exited):
            raise _FAILED[failure.stage](f"{where}: {describe_error(failure.error)}") from failure.error
        if what is None and failure.topic is None:
            what = self._progress.occasion
        failure = replace(failure, attempt=attempt or self._attempt(key_of(failure, what)))
        asked = (
            f"{where}: {describe_error(failure.error)}. The {failure.stage.value} handler, asked what to do about that,"
        )
        try:
            decision = handler(failure)
        except Exception as error:
            raise Decided(f"{asked} raised {type(error).__name__}: {error}") from error
        if isinstance(decision, Skip):
            self._log_dropped(failure, where, "skipped")
        elif isinstance(decision, SendToDeadLetter):
            if decision.topic == failure.topic:
                raise Decided(f"{asked} returned {decision!r}, the topic that it came from: it would fail there again")
            self._log_dropped(failure, where, f"sent to {decision.topic}")
            self._send_dead_letter(decision.topic, failure)
        elif isinstance(decision, RetryAfter):
            raise RetryRequested(failure, duration_ms(decision.delay, "RetryAfter.delay"), what)
        elif isinstance(decision, Fail):
            _fail(failure, f"{where}: {describe_error(failure.error)}")
        else:
            raise Decided(
                f"{asked} returned {decision!r}, expected Fail(), Skip(), RetryAfter(...) or SendToDeadLetter(...)"
            ) from failure.error
        self._metrics[failure.node].drop(reason)
        self._progress.has_changed = True

    def _log_dropped(self, failure: Failure, where: str, what: str) -> None:
        """Log which record is dropped and why; its content, and error messages, at debug level only."""
        self._repeats.log(
            _log, logging.WARNING, (self._application_id, failure.stage, failure.node, what),
            "%s: %s: %s", where, describe_cause(failure.error), what,
        )  # fmt: skip
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "%s: %s; key %r, value %r", where, describe_error(failure.error),
                failure.raw_key and failure.raw_key[:_SHOWN_BYTES],
                failure.raw_value and failure.raw_value[:_SHOWN_BYTES],
            )  # fmt: skip


def _as_caught(node: str, record: object, error: Exception | SystemExit) -> tuple[str, object]:
    return node, record


def key_of(failure: Failure, what: Hashable = None) -> FailureKey:
    """Return the key of a failure, the same in all attempts. `what`: the failed call, if no source record is known."""
    return failure.stage, failure.node, failure.topic, failure.partition, failure.offset, what


def _key_of_batch(node: str) -> FailureKey:
    return Stage.PROCESSING, node, None, None, None, "batch"


def _text_of_key(key: object) -> str:
    """Return a text for a record's key that is the same in all attempts; "" if its `repr` may differ between them."""
    if type(key) is tuple or isinstance(key, Windowed):
        parts = [_text_of_key(each) for each in key]
        return repr(parts) if all(parts) else ""
    return repr(key) if type(key) in _PLAIN_KEYS else ""


def _fail(failure: Failure, what: str) -> NoReturn:
    raise _FAILED[failure.stage](
        f"{what}. Mend it and start again: nothing since the last commit counts, and nothing is lost. "
        f"Or set {failure.stage.value}_handler (skip, DeadLetter(TOPIC), Retry())"
    ) from failure.error


def _as_exception(error: Exception | SystemExit) -> Exception:
    if isinstance(error, AttributeError) and (missing := no_context(error)) is not None:
        return ProcessingError(missing)
    if isinstance(error, Exception):
        return error
    return _Exited(
        f"it called sys.exit({error.code!r}), which ends the run: no handler was asked. Nothing since the last commit "
        "counts, and nothing is lost: the next start processes the record again. Raise an error for a bad record"
    ).with_traceback(error.__traceback__)


def _unavailable(error: BaseException | None) -> SerdeUnavailableError | MissingPackageError | None:
    """Return the first error about an unavailable serde or a missing package in a chain of causes; None without one."""
    while error is not None and not isinstance(error, (SerdeUnavailableError, MissingPackageError)):
        error = error.__cause__
    return error


def _not_a_record(forwarded: object) -> ProcessingError | None:
    """Return the error for a forwarded object that is no Record. Only a failure makes the engine look."""
    # Operators forward plain tuples of a record's four parts.
    if isinstance(forwarded, Record) or (type(forwarded) is tuple and len(forwarded) == len(Record._fields)):
        return None
    return ProcessingError(f"its parent forwarded {shown(forwarded)}, {EXPECTED_RECORD}")


def shown(value: Any) -> str:
    """Return the type and a short form of a value, for a message."""
    return f"{type(value).__name__} {reprlib.repr(value)}"


def no_child(message: str, record: object) -> TopologyError:
    """Return the error for a child that there is not; if something else than a record was forwarded, with a hint."""
    return TopologyError(message if isinstance(record, tuple) else f"{message}. {FORWARD}")


def of_part(part: str, error: Exception) -> Exception:
    """Return the error of a serde as one that says whether the key or the value of a record does not fit."""
    said = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    made = SerdeError(f"the {part}: {said}")
    made.__cause__ = error
    return made
