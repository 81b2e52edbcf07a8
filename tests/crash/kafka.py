"""The same on a real broker, which is killed like everything else."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from penstock import TopicPartition
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .app import ANSWERS, COUNTS, PARTITIONS
from .harness import Harness, Tally


class KafkaHarness(Harness):
    """Kills workers, the driver and the broker in turn, and freezes workers until the broker has given their transactions up."""

    kinds = ("broker", "workers", "driver", "frozen workers")
    poll_seconds = 0.05
    per_round = 8_000

    def __init__(
        self,
        directory: Path,
        seed: int,
        say: Callable[[str], None],
        guarantee: str = "exactly_once",
        changelog: str = "directory",
    ) -> None:
        # That the broker is away is no news.
        logging.getLogger("penstock.kafka").setLevel(logging.CRITICAL)
        self.broker = KafkaBroker(directory / "kafka")
        self.broker.start()
        self._deck: list[str] = []
        try:
            super().__init__(directory, seed, say, f"kafka:{self.broker.bootstrap}", guarantee, changelog)
        except BaseException:
            self.broker.kill()
            raise

    def next_kind(self) -> str:
        """Return one kind after the other, in an order that differs."""
        if not self._deck:
            kinds = [each for each in self.kinds if self.guarantee == "exactly_once" or each != "frozen workers"]
            self._deck = self.random.sample(kinds, len(kinds))
        return self._deck.pop()

    def share(self, kind: str) -> float:
        """Leave something to commit to those who are frozen."""
        return super().share(kind) * (0.5 if kind == "frozen workers" else 1.0)

    def strike(self, kind: str) -> bool:
        """Kill, or freeze; return whether there was anything to kill, and for the frozen: whether a commit was refused."""
        if kind == "broker":
            self.broker.kill()
            time.sleep(self.random.random())
            self.broker.start()
            return True
        return self.freeze_workers() if kind == "frozen workers" else super().strike(kind)

    def freeze_workers(self) -> bool:
        """Halt all workers until the broker has aborted what they have begun; return whether a commit of theirs was refused."""
        before = self.refusals()
        for _ in range(100):
            frozen = [each for each in map(_process, self.workers()) if each is not None]
            _send(frozen, signal.SIGSTOP)
            if self.has_open_transactions():
                break
            _send(frozen, signal.SIGCONT)
        else:
            return False
        try:
            self.wait_for(lambda: not self.has_open_transactions(), "the broker to give the transactions up")
        finally:
            _send(frozen, signal.SIGCONT)
        self.wait_for(lambda: self.refusals() > before or self.is_drained(), "the zombies' commits", keep_running=True)
        return self.refusals() > before

    def has_open_transactions(self) -> bool:
        """Return whether there are records that nobody may see yet."""
        partitions = [TopicPartition(topic, each) for topic in (ANSWERS, COUNTS) for each in range(PARTITIONS)]
        return self.log.end_offsets(partitions) != self.log.end_offsets(partitions, stable=False)

    def refusals(self) -> int:
        """Return how often the driver has heard that a commit was refused."""
        self.output.flush()
        return Path(self.output.name).read_text(errors="replace").count("; open it again")

    def is_drained(self) -> bool:
        """Return whether every position has reached its end, twice: a transaction's positions may be visible before its records."""
        if not super().is_drained():
            return False
        time.sleep(0.3)
        return super().is_drained()

    def check(self, tally: Tally) -> None:
        """Compare, but for what the weaker guarantee does not say."""
        if self.guarantee == "exactly_once":
            super().check(tally)
            return
        self.check_answers(tally)
        self.check_counts(tally)
        self.say(f"at least once: {tally.duplicated} more than once")
        tally.duplicated = 0
        tally.wrong.clear()

    def close(self) -> None:
        """End the application and the broker."""
        try:
            super().close()
        finally:
            self.broker.kill()


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for each in processes:
        try:
            each.send_signal(number)
        except psutil.NoSuchProcess:
            pass
