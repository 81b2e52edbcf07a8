"""What the harness does with the topics: makes input while the application runs, and reads what came of it."""

from __future__ import annotations

import random
import threading

from penstock import TopicPartition
from penstock.errors import LogError
from penstock.log import Log
from penstock.plugins.runtime.locations import open_log
from penstock.record import OutputBatch
from penstock.settings.settings import Settings

from .app import ID, INPUTS, ORDERS, OUTPUTS, PINGS, PRODUCTS, REFUNDS, REPARTITION, REPARTITIONS
from .oracle import Row

READ = {topic: count for topic, count in INPUTS.items() if topic != PRODUCTS} | {REPARTITION: REPARTITIONS}
"""The topics that tasks have positions in."""
CUSTOMERS = [f"customer-{number}" for number in range(40)]
ARTICLES = [f"product-{number}" for number in range(7)]
TIME_STEP_MS = 20
"""How much later each order is than the one before, by its timestamp."""
PAUSE_SECONDS = 0.1
PER_PAUSE = 16
MOST_WAITING = 4_000
"""How many records may wait for the application; a fault does not need more, and the round takes longer with them."""


class Feeder:
    """Appends inputs from a thread of its own, until it is closed; a log that is away is asked again."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self._random = random.Random(seed)
        self._log = open_log(settings)
        self._now = 1_000_000
        self._version = 0
        self._runs, self._ended = threading.Event(), threading.Event()
        self._at_work = threading.Lock()
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Go on."""
        self._runs.set()

    def pause(self) -> None:
        """Append nothing more; returns when what is on its way is there."""
        self._runs.clear()
        with self._at_work:
            pass

    def close(self) -> None:
        """End."""
        self._ended.set()
        self._runs.set()
        self._thread.join()
        self._log.close()

    def _feed(self) -> None:
        while not self._ended.is_set():
            self._runs.wait()
            with self._at_work:
                if self._runs.is_set() and not self._ended.is_set():
                    try:
                        if self._waiting() < MOST_WAITING:
                            self.append()
                    except LogError:
                        # Whether it is there does not matter: the oracle reads the topics.
                        pass
            self._ended.wait(PAUSE_SECONDS)

    def _waiting(self) -> int:
        read = partitions({ORDERS: INPUTS[ORDERS]})
        committed = self._log.committed(ID, read)
        return sum(end - (committed[each] or 0) for each, end in self._log.end_offsets(read).items())

    def append(self, count: int = PER_PAUSE) -> None:
        """Append so many orders, and some of all else."""
        self._put(
            ORDERS, [(self._customer(), f"{self._article()} {self._random.randrange(1, 100)}") for _ in range(count)]
        )
        self._put(REFUNDS, [(self._customer(), str(self._random.randrange(1, 50))) for _ in range(count // 4)])
        self._put(PINGS, [(self._customer(), str(self._random.randrange(1_000))) for _ in range(count // 4)])
        if self._version == 0 or self._random.random() < 0.2:
            self._version += 1
            self._put(PRODUCTS, [(article, str(self._version)) for article in self._random.sample(ARTICLES, 3)])

    def _customer(self) -> str:
        return self._random.choice(CUSTOMERS)

    def _article(self) -> str:
        return self._random.choice(ARTICLES)

    def _put(self, topic: str, records: list[tuple[str, str]]) -> None:
        times = []
        for _ in records:
            self._now += TIME_STEP_MS if topic == ORDERS else 0
            times.append(self._now)
        keys: list[bytes | None] = [key.encode() for key, _ in records]
        self._log.append(OutputBatch(topic, keys, [value.encode() for _, value in records], times))


class Reader:
    """Reads inputs and outputs, each record once, and knows how far the application is."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.inputs: list[Row] = []
        self.outputs: list[Row] = []
        self._at = dict.fromkeys(partitions({**INPUTS, **OUTPUTS}), 0)

    def read(self) -> None:
        """Read on, to the ends."""
        for partition, end in self._log.end_offsets(list(self._at)).items():
            rows = self.inputs if partition.topic in INPUTS else self.outputs
            while self._at[partition] < end:
                batches = self._log.fetch(partition, self._at[partition], end, 1 << 20)
                for batch in batches:
                    for offset, key, value, time in zip(
                        batch.offsets, batch.keys, batch.values, batch.timestamps, strict=True
                    ):
                        assert key is not None and value is not None
                        rows.append(Row(*partition, offset, key.decode(), value.decode(), time))
                # Without batches only marks of transactions are left.
                self._at[partition] = batches[-1].next_offset if batches else end

    def answered(self) -> int:
        """Return the sum of the ends of all outputs, which grows as the application works."""
        return sum(self._log.end_offsets(partitions(OUTPUTS)).values())

    def is_drained(self) -> bool:
        """Return whether every position has reached its end, and nothing is on its way."""
        if REPARTITION not in self._log.topics():
            return False
        read = partitions(READ)
        # In this order: what was produced by commits that these positions are from can be read once no transaction is
        # open.
        committed = self._log.committed(ID, read)
        return not self.open_transactions() and committed == self._log.end_offsets(read)

    def open_transactions(self) -> bool:
        """Return whether there are records that nobody may see yet."""
        written = partitions({**OUTPUTS, REPARTITION: REPARTITIONS})
        return self._log.end_offsets(written) != self._log.end_offsets(written, stable=False)


def partitions(topics: dict[str, int]) -> list[TopicPartition]:
    """Return the partitions of topics with their counts."""
    return [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
