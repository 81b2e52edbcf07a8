"""From topic to topic over a real broker, beside Java Kafka Streams on the same input, in turns."""

from __future__ import annotations

import os
import secrets
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from .data import spread_times, zipf_keys
from .kafka_app import EMBEDDED, MASTER, program_command
from .peer import PEER, peer_command
from .programs import RETENTION_MS, WINDOW_MS
from .result import Result
from .tree import MARK, MarkedProcesses

PARTITIONS = 4
KEYS = 100_000
ROUNDS = int(os.environ.get("PENSTOCK_BENCH_ROUNDS", "3"))
SLICE = 50_000
PATIENCE = 300.0
_LOOK_SECONDS = 0.25
"""Between two looks at what the processes take."""
WINDOWED_RECORDS = 3_000_000
JOINED_RECORDS = 2_000_000
JOIN_MS = 12_000
OTHER = "bench-other"
"""The second topic of a join."""
SPAN_MS = 360_000
"""The time that the records of the windowed count span: half a million a window."""
LATE_MS = 10_000
"""By how much each of these records may be late."""


@dataclass
class Job:
    """A program, the topic it reads, how many records are there, and how many it writes."""

    program: str
    topic: str
    records: int
    outputs: int


@dataclass
class _Run:
    """One run of one program: inputs per second from the first to the last output, and what it took."""

    rate: float
    total_rate: float
    cpu_s_per_million: float
    peak_mb: float
    worker_mb: float
    broker_cpu_s_per_million: float
    printed: str = field(default="", repr=False)


def count() -> Result:
    """Stateful count by key that emits every update, exactly once."""
    return compare("kafka-count", "count", 3_000_000)


def count_at_least_once() -> Result:
    """The same, at least once."""
    return compare("kafka-count-at-least-once", "count", 3_000_000, "at_least_once")


def filter_map() -> Result:
    """Parse JSON, filter, map, write JSON, exactly once."""
    return compare("kafka-filter-map", "filter-map", 3_000_000)


def word_count() -> Result:
    """Split sentences of ten words, repartition by word, count, emit every update, exactly once; rates are
    sentences."""
    return compare("kafka-word-count", "word-count", 300_000)


def windowed_count(changelog: str = "directory:changelog") -> Result:
    """Count by key and tumbling window, exactly once; emits every update. The peer's changelog is a topic."""
    result = compare("kafka-windowed-count", "windowed-count", WINDOWED_RECORDS, changelog=changelog)
    result.notes = {
        "keys": f"{KEYS:,}, by Zipf's law",
        "windows": f"tumbling windows of {WINDOW_MS // 1000} s, kept for {RETENTION_MS // 1000} s",
        "timestamps": f"{SPAN_MS // 1000} s over the whole input, each up to {LATE_MS // 1000} s late",
        "changelog": f"{changelog.partition(':')[0]}, peer topic; no record cache on either side",
    } | result.notes
    return result


def dsl_word_count() -> Result:
    """The word count, written in the DSL."""
    return compare("kafka-dsl-word-count", "dsl-word-count", 300_000)


def dsl_windowed_count() -> Result:
    """The windowed count, written in the DSL."""
    return compare("kafka-dsl-windowed-count", "dsl-windowed-count", WINDOWED_RECORDS)


def stream_table_join() -> Result:
    """Left join of a stream with a table of its users, in the DSL, exactly once."""
    result = compare("kafka-stream-table-join", "stream-table-join", 3_000_000)
    result.notes = {"keys": f"{KEYS:,}, by Zipf's law; the table has all, written before the stream"} | result.notes
    return result


def stream_stream_join() -> Result:
    """Inner join of two streams, in the DSL, exactly once; rates are records of both."""
    result = compare("kafka-stream-stream-join", "stream-stream-join", JOINED_RECORDS)
    result.notes = {
        "keys": f"{KEYS:,}, evenly",
        "window": f"{JOIN_MS // 1000} s before and after, grace {LATE_MS // 1000} s",
        "timestamps": f"{SPAN_MS // 1000} s over the whole input, each up to {LATE_MS // 1000} s late",
        "changelog": "directory, peer topic; no record cache on either side",
    } | result.notes
    return result


def engines(rounds: int = ROUNDS, cases: Sequence[str] = ("count", "filter-map", "word-count")) -> Result:
    """Batches and continuous mode on Spark, the embedded engine and the peer, by turns, exactly once: programs that
    catch up, each on two cores. `ratio` is the least of the embedded engine to continuous mode on Spark."""
    notes: dict[str, str] = {}
    ratios: list[float] = []
    measured: list[_Run] = []
    for program in cases:
        records = 600_000 if program.endswith("word-count") else 6_000_000
        with KafkaBroker(heap="1g", jvm_options=()) as broker:
            log = KafkaLog(broker.bootstrap)
            job = load(log, program, records)
            commands = {
                "Spark, batches": our_command(broker, program, "exactly_once"),
                "Spark, continuous": our_command(broker, program, "exactly_once", trigger="continuous"),
                "embedded": our_command(broker, program, "exactly_once", trigger="continuous", master=EMBEDDED),
                PEER: peer_command(broker.bootstrap, program, job.topic, "exactly_once"),
            }
            runs: dict[str, list[_Run]] = {side: [] for side in commands}
            for turn in range(rounds):
                for side in list(commands)[:: -1 if turn % 2 else 1]:
                    runs[side].append(measure(broker, log, job, commands[side]))
            log.close()
        rates = {side: statistics.median(each.rate for each in of_side) for side, of_side in runs.items()}
        for side, of_side in runs.items():
            cpu = statistics.median(each.cpu_s_per_million for each in of_side)
            of_all = ", ".join(f"{rates[side] / rate:.2f}" for rate in rates.values())
            notes[f"{program}, {side}"] = (
                f"{rates[side]:,.0f} records/s ({of_all} times those), {cpu:.2f} CPU s/million"
            )
        ratios.append(rates["embedded"] / rates["Spark, continuous"])
        measured += runs["embedded"]
    return Result(
        "kafka-engines",
        statistics.median(each.rate for each in measured),
        statistics.median(each.cpu_s_per_million for each in measured),
        max(each.peak_mb for each in measured),
        {},
        "continuous mode on Spark",
        min(ratios),
        notes,
    )


def compare(
    name: str,
    program: str,
    records: int,
    guarantee: str = "exactly_once",
    changelog: str = "directory:changelog",
) -> Result:
    """Run the program and its peer in turns, `ROUNDS` times, on one broker and one input."""
    with KafkaBroker(heap="1g", jvm_options=()) as broker:
        log = KafkaLog(broker.bootstrap)
        job = load(log, program, records)
        ours: list[_Run] = []
        theirs: list[_Run] = []
        for _ in range(ROUNDS):
            ours.append(measure(broker, log, job, our_command(broker, program, guarantee, changelog)))
            theirs.append(measure(broker, log, job, peer_command(broker.bootstrap, program, job.topic, guarantee)))
        log.close()
    ratios = [mine.rate / other.rate for mine, other in zip(ours, theirs, strict=True)]
    return Result(
        name,
        statistics.median(each.rate for each in ours),
        statistics.median(each.cpu_s_per_million for each in ours),
        max(each.peak_mb for each in ours),
        {},
        PEER,
        statistics.median(ratios),
        {
            "peer records/s": round(statistics.median(each.rate for each in theirs)),
            "peer CPU s per million": round(statistics.median(each.cpu_s_per_million for each in theirs), 2),
            "peer peak (MB)": round(max(each.peak_mb for each in theirs)),
            "largest Python worker (MB)": round(max(each.worker_mb for each in ours)),
            "ratios": ", ".join(f"{each:.2f}" for each in ratios),
            "records/s with start-up": f"{statistics.median(each.total_rate for each in ours):,.0f}, peer "
            f"{statistics.median(each.total_rate for each in theirs):,.0f}",
            "broker's CPU s per million": f"{statistics.median(each.broker_cpu_s_per_million for each in ours):.2f}, "
            f"peer {statistics.median(each.broker_cpu_s_per_million for each in theirs):.2f}",
            "phases of the last run": ours[-1].printed,
        },
    )


def load(log: KafkaLog, program: str, records: int, topic: str = "bench-in") -> Job:
    """Write the input of a program."""
    log.create_topic(topic, PARTITIONS)
    if program == "stream-stream-join":
        return _load_streams(log, topic, records)
    if program == "stream-table-join":
        users = sorted(set(zipf_keys(records, KEYS)))
        log.create_topic(OTHER, PARTITIONS)
        _append(log, OTHER, list(users), [b"of region %d" % (number % 50) for number in range(len(users))])
    if program.endswith("word-count"):
        words = zipf_keys(records * 10, KEYS)
        lines = [b" ".join(words[at : at + 10]) for at in range(0, len(words), 10)]
        for at in range(0, records, SLICE):
            _append(log, topic, [None] * len(lines[at : at + SLICE]), lines[at : at + SLICE])
        return Job(program, topic, records, records * 10)
    keys = zipf_keys(records, KEYS)
    cents = np.random.default_rng(7).integers(0, 1_000_000, records).tolist()
    now = time.time_ns() // 1_000_000
    spread = (
        spread_times(records, SPAN_MS, LATE_MS, last_ms=now) if program.endswith("windowed-count") else [now] * records
    )
    text = '{"id":%d,"user":"%s","kind":"%s","v":%d.%02d,"note":"the quick brown fox jumps over","ok":true}'
    for at in range(0, records, SLICE):
        some = keys[at : at + SLICE]
        values = [
            (text % (at + i, key.decode(), "abcde"[i % 5], cents[at + i] // 100, cents[at + i] % 100)).encode()
            for i, key in enumerate(some)
        ]
        log.append(OutputBatch(topic, list(some), list(values), spread[at : at + SLICE]))
    outputs = sum(each >= 1_000 for each in cents) if program == "filter-map" else records
    return Job(program, topic, records, outputs)


def _load_streams(log: KafkaLog, topic: str, records: int) -> Job:
    """Write two streams of half the records each; the outputs are the pairs of a key within the window."""
    rng = np.random.default_rng(7)
    now = time.time_ns() // 1_000_000
    half = records // 2
    log.create_topic(OTHER, PARTITIONS)
    sides = []
    for seed, name in ((11, topic), (12, OTHER)):
        keys = rng.integers(0, KEYS, half)
        times = np.array(spread_times(half, SPAN_MS, LATE_MS, last_ms=now, seed=seed))
        sides.append(np.sort(keys * (10 * SPAN_MS) + (times - now + 2 * SPAN_MS)))
        texts = [b"u%08d" % key for key in keys.tolist()]
        for at in range(0, half, SLICE):
            values: list[bytes | None] = [b"v%d" % number for number in range(at, min(at + SLICE, half))]
            log.append(OutputBatch(name, list(texts[at : at + SLICE]), values, times[at : at + SLICE].tolist()))
    left, right = sides
    found = np.searchsorted(right, left + JOIN_MS, "right") - np.searchsorted(right, left - JOIN_MS, "left")
    return Job("stream-stream-join", topic, records, int(found.sum()))


def _append(log: KafkaLog, topic: str, keys: list[bytes | None], values: list[bytes]) -> None:
    now = time.time_ns() // 1_000_000
    log.append(OutputBatch(topic, keys, list(values), [now] * len(keys)))


@contextmanager
def _output_topic(log: KafkaLog) -> Iterator[str]:
    name = f"bench-out-{secrets.token_hex(4)}"
    log.create_topic(name, PARTITIONS)
    try:
        yield name
    finally:
        log.delete_topic(name)


def measure(broker: KafkaBroker, log: KafkaLog, job: Job, command: list[str]) -> _Run:
    """Run a command from topic to topic. In it {in}, {out} and {dir} stand for the topics and a directory."""
    with _output_topic(log) as target, tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        filled = [
            each.replace("{in}", job.topic).replace("{out}", target).replace("{dir}", directory) for each in command
        ]
        output, usage = Path(directory) / "output", MarkedProcesses()
        broker_process = psutil.Process(broker.pid)
        broker_before = sum(broker_process.cpu_times()[:2])
        known = frozenset(log.topics())
        began = time.monotonic()
        with output.open("wb") as file:
            process = subprocess.Popen(
                filled, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, MARK: usage.mark}
            )
        try:
            first, first_count, last = _watch(log, target, job.outputs, process, usage, known)
            broker_cpu = sum(broker_process.cpu_times()[:2]) - broker_before
            cpu = usage.total_cpu_s()
            try:
                # Ours ends by itself now, and prints where its time went.
                process.wait(30 if "available_now" in command else 0)
            except subprocess.TimeoutExpired:
                pass
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{output.read_text(errors='replace')[-3000:]}") from error
        finally:
            process.terminate()
            process.wait(60)
        share = (job.outputs - first_count) / job.outputs
        printed = output.read_text(errors="replace").strip().splitlines()
        return _Run(
            job.records * share / (last - first),
            job.records / (last - began),
            cpu / job.records * 1e6,
            usage.peak_mb,
            usage.worker_mb,
            broker_cpu / job.records * 1e6,
            printed[-1] if printed else "",
        )


def _watch(
    log: KafkaLog,
    target: str,
    outputs: int,
    process: subprocess.Popen[bytes],
    usage: MarkedProcesses,
    known: frozenset[str],
) -> tuple[float, int, float]:
    """Return when the first records were written, how many of them were outputs, and when the last outputs could be
    read. The first ones may be those of a repartition topic, which is not among the `known` topics. Where one look
    finds all outputs, the first ones count as written at the look before it."""
    partitions = [TopicPartition(target, each) for each in range(PARTITIONS)]
    first, first_count = 0.0, 0
    now = time.monotonic()
    deadline, look_at = now + PATIENCE, now
    while True:
        if now >= look_at:
            # A look walks through all processes of the machine: with each question it would cost what is measured.
            usage.look()
            look_at = now + _LOOK_SECONDS
        written = sum(log.end_offsets(partitions, stable=False).values())
        before, now = now, time.monotonic()
        if not first and (written or _has_repartitioned(log, known)):
            # The end offsets count the markers of transactions, too, so there may be more than `outputs`.
            first, first_count = (now, written) if written < outputs else (before, 0)
        if written >= outputs and sum(log.end_offsets(partitions).values()) >= outputs:
            return first, first_count, time.monotonic()
        if process.poll() is not None and process.returncode:
            raise RuntimeError(f"it ended with {process.returncode} after {written} of {outputs} outputs")
        if now > deadline:
            raise RuntimeError(f"only {written} of {outputs} outputs after {PATIENCE:.0f} s")
        time.sleep(0.05)


def _has_repartitioned(log: KafkaLog, known: frozenset[str]) -> bool:
    """Return whether a repartition topic that was made since has records."""
    made = {name: info for name, info in log.topics().items() if name not in known and name.endswith("-repartition")}
    partitions = [TopicPartition(name, each) for name, info in made.items() for each in range(info.partitions)]
    return any(log.end_offsets(partitions, stable=False).values())


def our_command(
    broker: KafkaBroker,
    program: str,
    guarantee: str,
    changelog: str = "directory:changelog",
    trigger: str = "available_now",
    master: str = MASTER,
) -> list[str]:
    """Return the command that runs a program, with two processes for its tasks, until its input is read; continuous
    mode is ended after that."""
    settings: dict[str, Any] = {"processing_guarantee": guarantee, "changelog": changelog}
    if master == EMBEDDED:
        settings["processes"] = 2
    return program_command(broker.bootstrap, program, "{in}", trigger, settings, master)
