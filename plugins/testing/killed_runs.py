"""Runs with kills: an application on its engine, whose task hosts are killed in the middle of records."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import (
    Application,
    ConfigError,
    Processor,
    Record,
    SourceNode,
    Summary,
    ValueTransformer,
    WrappingProcessor,
    WrappingTransformer,
    run,
)
from penstock.plugins.engine.run.settings import MAX_RECORDS_PER_BATCH
from penstock.plugins.engine.task.locations import open_log

from .driver import make_named_topics
from .topics import TopicReader, find_source, serialized


@dataclass(frozen=True)
class KilledRun:
    """What a run with kills did: its summary, and the records of each output topic, by partition."""

    summary: Summary
    answers: Mapping[str, list[Record]]


def run_with_kills(
    application: Application,
    inputs: Mapping[str, Iterable[Record | tuple[Any, ...]]],
    directory: Path,
    *,
    kills: int = 2,
    partitions: int = 2,
    **options: Any,
) -> KilledRun:
    """Send `inputs`, by topic, and run `application` until all is processed; `kills` times its task host is killed.

    The kills are spread over the records: a host ends by SIGKILL when a processor gets one, before its commit. Each
    kill is in a batch of its own, because a host that is lost several times in one batch ends the run:
    `max_records_per_batch` is lowered to make so many batches. Topics that the program names are made with `partitions`
    partitions. `directory` has notes of the kills. `options` are those of `penstock.run`. Raises ConfigError where
    tasks run in this process or fewer records come than kills, and as `penstock.run`.
    """
    log, program = open_log(application.settings), application.program
    try:
        make_named_topics(application, log, lambda topic: partitions)
        batches = [
            serialized(topic, _source(application, topic), application.settings, records, None, partitions, 0)
            for topic, records in inputs.items()
        ]
        total = sum(len(batch.keys) for batch in batches)
        if total <= kills:
            raise ConfigError(f"run_with_kills: {kills} kills need more records, found {total}")
        for batch in batches:
            log.append(batch)
        directory.mkdir(parents=True, exist_ok=True)
        wrapper = _Killing(
            application.settings.processor_wrapper,
            directory,
            [total * (number + 1) // (kills + 1) for number in range(kills)],
        )
        most = min(MAX_RECORDS_PER_BATCH.of(application.settings) or total, max(1, total // (kills + 1)))
        killed = application.with_settings(processor_wrapper=wrapper, max_records_per_batch=most)
        summary: Summary = run(killed, **options)
        done = len(list(directory.glob("kill-*")))
        if done < kills:
            raise ConfigError(f"run_with_kills: {done} kills of {kills} took place: the processors got too few records")
        reader = TopicReader(application, log)
        return KilledRun(summary, {topic: list(reader.unread(topic)) for topic in program.sink_topics()})
    finally:
        log.close()


def _source(application: Application, topic: str) -> SourceNode:
    if (source := find_source(application, topic)) is not None:
        return source
    raise ConfigError(f"no source reads topic {topic!r}; the sources read: {', '.join(application.program.topics())}")


class _Killing:
    """Wraps processors; kills its process at the calls `at` of them, each once, whatever process makes it.

    No two kills are in one batch: a call that would be in a batch of an earlier kill leaves it to a later call.
    """

    def __init__(self, inner: Any, directory: Path, at: Sequence[int]) -> None:
        self._inner = inner
        self._directory = directory
        self._at = at
        self._test = os.getpid()

    def __call__(self, node: str, made: Any) -> Processor | ValueTransformer:
        wrapped = made if self._inner is None else self._inner(node, made)
        if isinstance(wrapped, Processor):
            return _KillingProcessor(wrapped, self)
        return _KillingTransformer(wrapped, self)

    def count(self, clock_ms: int) -> None:
        """Count a call, and kill this process at the planned calls.

        `clock_ms`: the wall clock of the batch. It is the same when the batch is repeated, and later in the next one.
        """
        if os.getpid() == self._test:
            raise ConfigError("run_with_kills: tasks run in the process of the test: set `processes` to 1 or more")
        file = os.open(self._directory / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, b".")
            calls = os.fstat(file).st_size
        finally:
            os.close(file)
        for number, at in enumerate(self._at):
            kill = self._directory / f"kill-{number}"
            if calls >= at and not kill.exists():
                if _make(self._directory / f"batch-{clock_ms}") and _make(kill):
                    os.kill(os.getpid(), signal.SIGKILL)
                return


def _make(path: Path) -> bool:
    """Make an empty file; return False if another process made it first."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


class _KillingProcessor(WrappingProcessor):
    def __init__(self, inner: Processor, killing: _Killing) -> None:
        super().__init__(inner)
        self._killing = killing

    def process(self, record: Record) -> None:
        self._killing.count(self.context.current_system_time_ms())
        super().process(record)


class _KillingTransformer(WrappingTransformer):
    def __init__(self, inner: ValueTransformer, killing: _Killing) -> None:
        super().__init__(inner)
        self._killing = killing

    def transform(self, key: Any, value: Any) -> Any:
        self._killing.count(self.context.current_system_time_ms())
        return super().transform(key, value)
