"""Feeds, kills, restarts and checks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from penstock import TopicPartition
from penstock.log import Log
from penstock.nodes import TaskId
from penstock.plugins.runtime.host import Host
from penstock.plugins.runtime.locations import open_log
from penstock.plugins.runtime.worker import TaskWorker
from penstock.record import OutputBatch

from .app import ANSWERS, COUNTS, INPUT, PARTITIONS, make_application

PER_ROUND = 4_000
KEYS = 50
COLOURS = ("red", "green", "blue", "black", "white", "grey", "pink")
PATIENCE = 240.0
"""Seconds after which waiting for a condition is a failure."""


@dataclass
class Tally:
    """What went wrong: inputs never answered, answered twice, or anything that is not as in an undisturbed run."""

    rounds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    duplicated: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)


class Harness:
    """One data directory, one application, many kills."""

    kinds: tuple[str, ...] = ("workers", "driver")
    """What is killed; a round chooses."""
    poll_seconds = 0.005
    per_round = PER_ROUND

    def __init__(
        self,
        directory: Path,
        seed: int,
        say: Callable[[str], None],
        log: str = "local:log",
        guarantee: str = "exactly_once",
        changelog: str = "directory",
    ) -> None:
        self.random = random.Random(seed)
        self.say = say
        self.directory = directory
        self.guarantee = guarantee
        self.changelog = changelog
        self.application = make_application(str(directory / "data"), log, guarantee, changelog)
        self.log: Log = open_log(self.application.settings)
        for topic in (INPUT, ANSWERS, COUNTS):
            self.log.create_topic(topic, PARTITIONS)
        self.sent: list[tuple[str, str, str]] = []  # (number, key, colour)
        self.process: subprocess.Popen[bytes] | None = None
        self.output = (directory / "driver.log").open("ab")

    # ------------------------------------------------------------------ the application

    def start(self) -> None:
        """Start the driver in a process group of its own."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.plugins.cli", "run", "tests.crash.app:application", "--trigger", "0s", "--master", "local[2,4]"],
            env={
                **os.environ,
                "CRASH_DIRECTORY": self.application.settings.data_dir,
                "CRASH_LOG": self.application.settings.log,
                "CRASH_GUARANTEE": self.guarantee,
                "CRASH_CHANGELOG": self.changelog,
            },
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def ensure_running(self) -> None:
        """Start the driver again if it is gone."""
        if self.process is None or self.process.poll() is not None:
            self.start()

    def kill_driver(self) -> bool:
        """Kill the driver, its JVM and its workers at once."""
        assert self.process is not None
        if self.process.poll() is not None:
            return False
        children = psutil.Process(self.process.pid).children(recursive=True)
        for pid in [self.process.pid, *(child.pid for child in children)]:
            _kill(pid)
        self.process.wait()
        return True

    def kill_workers(self) -> bool:
        """Kill one or all of the Python workers that Spark runs tasks in."""
        assert self.process is not None
        workers = self.workers()
        if not workers:
            return False
        for pid in workers if self.random.random() < 0.3 else [self.random.choice(workers)]:
            _kill(pid)
        return True

    def workers(self) -> list[int]:
        """Return the process ids of Spark's Python workers: the children of its daemon."""
        assert self.process is not None
        found: list[int] = []
        for child in self._below(self.process.pid, recursive=True):
            try:
                if "pyspark.daemon" in " ".join(child.cmdline()):
                    found += [each.pid for each in self._below(child.pid) if each.status() != psutil.STATUS_ZOMBIE]
            except psutil.Error:  # it has ended meanwhile, or is a zombie
                continue
        return sorted(set(found))

    @staticmethod
    def _below(pid: int, recursive: bool = False) -> list[psutil.Process]:
        try:
            return psutil.Process(pid).children(recursive=recursive)
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        """Stop the driver cleanly."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)

    def tail(self) -> str:
        """Return the end of what the driver printed."""
        self.output.flush()
        return Path(self.output.name).read_text(errors="replace")[-6_000:]

    def close(self) -> None:
        """End the application, if it still runs, and close what is open."""
        if not self.is_down():
            self.kill_driver()
        self.output.close()
        self.log.close()

    # ------------------------------------------------------------------ a round

    def feed(self, count: int) -> None:
        """Append inputs."""
        rows = []
        for _ in range(count):
            number = f"{len(self.sent):08d}"
            key, colour = f"key-{self.random.randrange(KEYS)}", self.random.choice(COLOURS)
            self.sent.append((number, key, colour))
            rows.append((key.encode(), f"{number} {colour}".encode()))
        now = time.time_ns() // 1_000_000
        self.log.append(OutputBatch(INPUT, [key for key, _ in rows], [value for _, value in rows], [now] * count))

    def round(self, tally: Tally) -> None:
        """Feed, kill at a random moment, and wait until everything is processed."""
        self.ensure_running()
        kind = self.next_kind()
        if kind in ("workers", "frozen workers"):
            self.wait_for(lambda: bool(self.workers()) or self.is_down(), "a worker to kill")
        start = self.done()
        self.feed(self.per_round)
        # A moment somewhere in the work: when a random share of this round's answers is there.
        share = self.share(kind)
        self.wait_for(
            lambda: self.done() - start >= share * self.per_round * 0.98 or self.is_down(),
            "some of the round's answers",
        )
        killed = self.strike(kind)
        tally.kills[kind if killed else "nothing to kill"] += 1
        self.wait_for(self.is_drained, "everything to be processed", keep_running=True)
        tally.rounds += killed

    def share(self, kind: str) -> float:
        """Return how much of a round is to be done before the strike."""
        return self.random.random()

    def next_kind(self) -> str:
        """Return what this round kills."""
        return self.random.choice(self.kinds)

    def strike(self, kind: str) -> bool:
        """Kill; return whether there was anything to kill."""
        return self.kill_workers() if kind == "workers" else self.kill_driver()

    def is_down(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def done(self) -> int:
        """Return how many answers there are."""
        return sum(self.log.end_offsets([TopicPartition(ANSWERS, each) for each in range(PARTITIONS)]).values())

    def is_drained(self) -> bool:
        """Return whether every position has reached its end."""
        repartition = "crash-by-colour-repartition"
        topics = self.log.topics()
        if repartition not in topics:
            return False
        inputs = [
            TopicPartition(topic, each) for topic in (INPUT, repartition) for each in range(topics[topic].partitions)
        ]
        ends, committed = self.log.end_offsets(inputs), self.log.committed("crash", inputs)
        return all(committed[each] == ends[each] for each in inputs)

    def wait_for(self, condition: Callable[[], bool], what: str, keep_running: bool = False) -> None:
        """Poll until a condition holds; restart a driver that is gone if asked to."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if keep_running:
                self.ensure_running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}; the driver's output is in {self.output.name}")
            time.sleep(self.poll_seconds)

    # ------------------------------------------------------------------ checking

    def check(self, tally: Tally) -> None:
        """Compare outputs and stores with what an undisturbed run gives. The driver must be stopped."""
        tokens = self.check_answers(tally)
        self.check_counts(tally)
        self.check_stores(tally, tokens)

    def check_answers(self, tally: Tally) -> dict[str, str]:
        """Each input answered once, in its key's order; return the token of each."""
        answers: dict[str, list[str]] = defaultdict(list)
        tokens: dict[str, str] = {}
        times: Counter[str] = Counter()
        for key, value in self.read(ANSWERS):
            number, token = value.split(" ")
            answers[key].append(number)
            tokens[number] = token
            times[number] += 1
        tally.lost += sum(number not in times for number, _, _ in self.sent)
        tally.duplicated += sum(count - 1 for count in times.values())
        wanted: dict[str, list[str]] = defaultdict(list)
        for number, key, _ in self.sent:
            wanted[key].append(number)
        for key, numbers in wanted.items():
            if list(dict.fromkeys(answers[key])) != [number for number in numbers if number in times]:
                tally.wrong.append(f"the answers of {key} are out of order")
        return tokens

    def check_counts(self, tally: Tally) -> None:
        """Each colour counted up by ones, each input once."""
        counts: dict[str, list[int]] = defaultdict(list)
        numbers: Counter[str] = Counter()
        for colour, value in self.read(COUNTS):
            count, number = value.split(" ")
            counts[colour].append(int(count))
            numbers[number] += 1
        tally.lost += sum(number not in numbers for number, _, _ in self.sent)
        tally.duplicated += sum(count - 1 for count in numbers.values())
        for colour, total in Counter(colour for _, _, colour in self.sent).items():
            if counts[colour] != list(range(1, total + 1)):
                tally.wrong.append(f"the counts of {colour} are not 1 to {total}")

    def check_stores(self, tally: Tally, tokens: dict[str, str]) -> None:
        """The stores hold what the outputs say: as they lie on this host, and as restored from the changelog alone."""
        totals = Counter(colour for _, _, colour in self.sent)
        for where, data in (
            ("local", self.application),
            ("restored", self.application.with_settings(state_dir="restored")),
        ):
            kept: dict[str, str] = {}
            counted: dict[str, int] = {}
            assignment = self.application.program.resolve(
                {name: info.partitions for name, info in self.log.topics().items()}, self.application.id
            )
            for task_id, inputs in assignment.tasks.items():
                worker = TaskWorker(data, TaskId(*task_id), inputs, self.log, host=Host())
                worker.run_batch({}, 0)
                assert worker.task is not None
                for name, store in worker.task.stores.items():
                    with store.all() as entries:  # type: ignore[attr-defined]
                        (kept if name == "tokens" else counted).update(entries)
                worker.close()
            if kept != tokens:
                differing = sum(kept.get(number) != token for number, token in tokens.items())
                tally.wrong.append(f"{where} store 'tokens': {differing} of {len(tokens)} differ from the answers")
            if counted != dict(totals):
                tally.wrong.append(f"{where} store 'counts': {counted}, expected {dict(totals)}")

    def read(self, topic: str) -> list[tuple[str, str]]:
        """Return every (key, value) of a topic, by partition."""
        rows: list[tuple[str, str]] = []
        for number in range(PARTITIONS):
            partition = TopicPartition(topic, number)
            at, end = 0, self.log.end_offsets([partition])[partition]
            while at < end:
                batches = self.log.fetch(partition, at, end, 1 << 20)
                if not batches:
                    break  # marks of Kafka's transactions
                for batch in batches:
                    rows += (
                        (key.decode(), value.decode())
                        for key, value in zip(batch.keys, batch.values, strict=True)
                        if key is not None and value is not None
                    )
                    at = batch.next_offset
        return rows


def run(rounds: int, make: Callable[[Path], Harness]) -> Tally:
    """Run `rounds` rounds in a new directory and check; one that found nothing to kill does not count."""
    with tempfile.TemporaryDirectory(prefix="penstock-crash-") as directory:
        harness = make(Path(directory))
        tally = Tally()
        try:
            for _ in range(3 * rounds):
                if tally.rounds == rounds:
                    break
                began = time.monotonic()
                harness.round(tally)
                harness.say(
                    f"round {tally.rounds}/{rounds}: {len(harness.sent)} inputs, {dict(tally.kills)}, {time.monotonic() - began:.1f} s"
                )
            harness.stop()
            harness.check(tally)
        except BaseException:
            harness.say(harness.tail())
            raise
        finally:
            harness.close()
        return tally


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
