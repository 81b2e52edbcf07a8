"""What the harness does with the topics: makes input while the application runs, and reads what came of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from penstock import TopicPartition
from penstock.errors import LogError
from penstock.log import Log
from penstock.plugins.engine.task.locations import open_log
from penstock.settings.settings import Settings

from .oracle import Row
from .programs import ID, Program

PAUSE_SECONDS = 0.1
PER_PAUSE = 16
MOST_WAITING = 4_000
"""How many records may wait for the application; a fault does not need more, and the round takes longer with them."""


class Feeder:
    """Appends inputs from a thread of its own, until it is closed; a log that is away is asked again."""

    def __init__(self, settings: Settings, program: Program, seed: int) -> None:
        self._program, self._input = program, program.make_input(seed)
        self._log = open_log(settings)
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
        topic, count = next(iter(self._program.inputs.items()))
        read = partitions({topic: count})
        committed = self._log.committed(ID, read)
        return sum(end - (committed[each] or 0) for each, end in self._log.end_offsets(read).items())

    def append(self, count: int = PER_PAUSE) -> None:
        """Append so many records to the first topic, and some to the others."""
        for batch in self._input.batches(count):
            self._log.append(batch)

    def backlog(self) -> None:
        """Append what several inputs are to have at a start, unless the log is away. Nothing else comes meanwhile."""
        with self._at_work:
            try:
                for batch in self._input.backlog():
                    self._log.append(batch)
            except LogError:
                pass

    def push(self) -> None:
        """Append records that move time on."""
        for batch in self._input.push():
            self._log.append(batch)


class Reader:
    """Reads inputs and outputs, each record once, and knows how far the application is."""

    def __init__(self, log: Log, program: Program) -> None:
        self._log = log
        self._program = program
        self.inputs: list[Row] = []
        self.outputs: list[Row] = []
        self._at = dict.fromkeys(partitions({**program.inputs, **program.outputs}), 0)

    def read(self) -> None:
        """Read on, to the ends."""
        for partition, end in self._log.end_offsets(list(self._at)).items():
            rows = self.inputs if partition.topic in self._program.inputs else self.outputs
            while self._at[partition] < end:
                batches = self._log.fetch(partition, self._at[partition], end, 1 << 20)
                for batch in batches:
                    headers = batch.headers or [()] * len(batch)
                    for offset, key, value, time, of_row in zip(
                        batch.offsets, batch.keys, batch.values, batch.timestamps, headers, strict=True
                    ):
                        assert key is not None
                        rows.append(Row(*partition, offset, key.decode(), (value or b"").decode(), time, of_row))
                # Without batches only marks of transactions are left.
                self._at[partition] = batches[-1].next_offset if batches else end

    def answered(self) -> int:
        """Return the sum of the ends of all outputs, which grows as the application works."""
        return sum(self._log.end_offsets(partitions(self._program.outputs)).values())

    def is_drained(self) -> bool:
        """Return whether every position has reached its end, and nothing is on its way."""
        if not self._program.internal.keys() <= self._log.topics().keys():
            return False
        read = partitions(self._program.read)
        # In this order: what was produced by commits that these positions are from can be read once no transaction is
        # open.
        committed = self._log.committed(ID, read)
        return not self.open_transactions() and committed == self._log.end_offsets(read)

    def open_transactions(self) -> bool:
        """Return whether there are records that nobody may see yet."""
        written = partitions({**self._program.outputs, **self._program.internal})
        return self._log.end_offsets(written) != self._log.end_offsets(written, stable=False)


def partitions(topics: Mapping[str, int]) -> list[TopicPartition]:
    """Return the partitions of topics with their counts."""
    return [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
