"""What `make demo` runs: 02_word_count.py over a real text, on the embedded engine and on Spark; all is in `.demo`.

Kill it in the middle, however you like, and start it again: it continues from its last commits, and ends with the same
counts. The text is Python's own language reference, which is part of every CPython.

With `--kafka` (`make demo-kafka`) the topics are on a real Kafka broker, which the demo starts and which ends with it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import Application, OutputBatch, TopicPartition, run
from penstock.errors import LogError, PenstockError
from penstock.log import Log
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.operate.cli.target import load_application
from penstock.serde import IntSerde
from penstock.spark import RunProgress
from penstock.testing.kafka_broker import KafkaBroker

WORD_COUNT = Path(__file__).with_name("02_word_count.py")
PARTITIONS = 2
RECORDS_PER_BATCH = 4000
"""Small batches, so that there is something to watch, and time to kill it."""

LEASE_SECONDS = 30
"""Longer than the lease of a killed run lasts on Kafka."""


def main() -> int:
    """Load the text if that was not done yet, count the rest of it, and check the result."""
    arguments = parse_arguments()
    if arguments.fresh:
        shutil.rmtree(arguments.data_dir, ignore_errors=True)
    try:
        with topics_at(arguments) as location:
            return count(arguments, location)
    except PenstockError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Start it again, and it continues.", file=sys.stderr)
        return 130


@contextmanager
def topics_at(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the log's location: a directory, or a broker that runs as long as this context."""
    if not arguments.kafka:
        yield "local:log"
        return
    print("Starting Kafka ...", flush=True)
    with KafkaBroker(arguments.data_dir / "kafka") as broker:
        print(f"A Kafka broker listens on {broker.bootstrap}.")
        yield f"kafka:{broker.bootstrap}"


def count(arguments: argparse.Namespace, location: str) -> int:
    """Count the words in topics at a location; return the exit code."""
    application = load_application(
        f"{WORD_COUNT}:application",
        settings={
            "data_dir": str(arguments.data_dir.absolute()),
            "log": location,
            "processing_guarantee": arguments.guarantee,
            "max_records_per_batch": RECORDS_PER_BATCH,
        },
    )
    log = open_log(application.settings)
    try:
        load_text(log, arguments.lines)
        counts = Counts(log)
        counts.read_on()
        say_where_it_stands(log, counts)
        Watching(application, counts).run(arguments.engine, arguments.master)
        return check(log, counts, arguments.guarantee)
    finally:
        log.close()


def parse_arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="Counts the words of a real text; kill it and start it again.")
    parser.add_argument(
        "--data-dir", type=Path, default=Path(".demo"), help="where topics and state are kept (default: .demo)"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="delete the data directory first, and start from the beginning"
    )
    parser.add_argument("--kafka", action="store_true", help="keep the topics on a Kafka broker of the demo's own")
    parser.add_argument(
        "--guarantee",
        choices=["exactly_once", "at_least_once"],
        default="exactly_once",
        help="at_least_once, with --kafka: a kill may have words counted again (default: exactly_once)",
    )
    parser.add_argument("--lines", type=int, metavar="N", help="take the first N lines of the text only")
    parser.add_argument(
        "--engine", default="spark", help="spark (the default), or embedded: this machine, without Java"
    )
    parser.add_argument("--master", default="local[2]", help="Spark's master (default: local[2])")
    arguments = parser.parse_args()
    if arguments.guarantee != "exactly_once" and not arguments.kafka:
        parser.error("--guarantee at_least_once needs --kafka: the local log always commits exactly once")
    return arguments


# ---------------------------------------------------------------- the text


def text_lines() -> list[str]:
    """Return the lines of Python's language reference, as `help()` shows it."""
    from pydoc_data.topics import topics

    return [line for name in sorted(topics) for line in topics[name].splitlines() if line.strip()]


def load_text(log: Log, most: int | None) -> None:
    """Make the topics and put the text, or its first `most` lines, into one, unless it is there."""
    for topic in ("text", "word-counts"):
        if topic not in log.topics():
            log.create_topic(topic, PARTITIONS)
    lines = text_lines()[:most]
    there = sum(log.end_offsets(partitions("text")).values())
    begun = any(position is not None for position in log.committed("word-count", partitions("text")).values())
    if there < len(lines) and not begun:
        # The topic is empty, or a run was killed while it wrote: in Kafka a part may be there.
        if there:
            log.delete_topic("text")
            log.create_topic("text", PARTITIONS)
        values: list[bytes | None] = [line.encode() for line in lines]
        places = [(number % PARTITIONS,) for number in range(len(lines))]
        log.append(OutputBatch("text", [None] * len(lines), values, [now_ms()] * len(lines), partitions=[*places]))
        print(f"Wrote {len(lines):,} lines of Python's language reference to the topic 'text'.")


def now_ms() -> int:
    """Return the time as a record's timestamp."""
    return time.time_ns() // 1_000_000


def partitions(topic: str) -> list[TopicPartition]:
    """Return the partitions of one of the demo's topics."""
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def read(log: Log, partition: TopicPartition, start: int) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Yield (next offset, key, value) of the records of a partition from `start` on."""
    end = log.end_offsets([partition])[partition]
    while start < end:
        batches = log.fetch(partition, start, end, 1 << 20)
        if not batches:
            return  # only transaction markers are left
        for batch in batches:
            start = batch.next_offset
            for offset, key, value in zip(batch.offsets, batch.keys, batch.values, strict=True):
                yield offset + 1, key, value


# ---------------------------------------------------------------- what comes out


class Counts:
    """The topic of word counts as a table, read on as it grows."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._positions = dict.fromkeys(partitions("word-counts"), 0)
        self._int = IntSerde()
        self.table: Counter[str] = Counter()
        self.once = True
        """Whether each word counted 1, 2, 3, ... without a gap and without a repetition."""

    def read_on(self) -> None:
        """Read the records since the last call."""
        for partition, start in self._positions.items():
            for position, key, value in read(self._log, partition, start):
                assert key is not None and value is not None
                word, count = key.decode(), self._int.deserialize(value)
                self.once = self.once and count == self.table[word] + 1
                self.table[word] = count
                self._positions[partition] = position

    def top(self, most: int) -> str:
        """Return the words that came most often."""
        return "  ".join(f"{word} {count:,}" for word, count in self.table.most_common(most))


class Watching:
    """A run whose batches are printed as they end."""

    def __init__(self, application: Application, counts: Counts) -> None:
        self._application = application
        self._counts = counts
        self._batches = 0

    def run(self, engine: str, master: str) -> None:
        """Count until everything is counted."""
        options = {"master": master} if engine == "spark" else {}
        print(f"Starting {'Spark' if engine == 'spark' else f'the engine {engine}'} ...", flush=True)
        deadline = time.monotonic() + LEASE_SECONDS
        while True:
            try:
                summary = run(self._application, engine=engine, on_progress=self._show, **options)
                break
            except LogError as error:
                # Kafka does not show that a run was killed: its lease has to expire.
                if "is already run by" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(1)
        if summary.stopped_by is not None:
            raise KeyboardInterrupt

    def _show(self, progress: RunProgress) -> None:
        if progress.batches > self._batches:
            self._batches = progress.batches
            self._counts.read_on()
            print(
                f"batch {progress.batches:3}: {progress.records_in:7,} records in, {progress.lag:7,} to go   "
                f"{self._counts.top(5)}",
                flush=True,
            )


def say_where_it_stands(log: Log, counts: Counts) -> None:
    """Print whether this run starts from the beginning, or continues an earlier one."""
    committed = log.committed("word-count", partitions("text"))
    done = sum(position or 0 for position in committed.values())
    total = sum(log.end_offsets(partitions("text")).values())
    if counts.table:
        print(
            f"An earlier run read {done:,} of {total:,} lines and counted {counts.table.total():,} words. "
            "This one continues."
        )
    else:
        print(f"{total:,} lines to read. Kill this whenever you like, and start it again.")


def check(log: Log, counts: Counts, guarantee: str) -> int:
    """Count the same text in plain Python, compare, and return the exit code."""
    import re

    counts.read_on()
    expected: Counter[str] = Counter()
    for partition in partitions("text"):
        for _, _, value in read(log, partition, 0):
            expected.update(re.findall(r"[^\W\d_]+", (value or b"").decode().lower()))
    print(f"\n{counts.table.total():,} words, {len(counts.table):,} different ones. The most frequent:")
    for word, count in counts.table.most_common(10):
        print(f"  {count:6,}  {word}")
    if counts.table == expected and counts.once:
        print("equal: a plain Python Counter finds the same, and every word was counted once.")
        return 0
    if guarantee == "at_least_once" and counts.table >= expected:
        again = counts.table.total() - expected.total()
        print(f"at least once: a plain Python Counter finds {expected.total():,} words; {again:,} were counted again.")
        return 0
    print(f"NOT equal: a plain Python Counter finds {expected.total():,} words.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
