"""`python -m bench.latency_client LOAD`: the clients that measure the latency of a running application.

One thread sends at a steady rate, the other reads what the application writes. LOAD is the JSON of a `Load`. Prints an
object of JSON with the numbers of records `sent`, and of outputs `expected` and `received`. The milliseconds of each
measured output go to `file`, an array of numpy's.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from dataclasses import dataclass, field

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from .data import zipf_keys

PARTITIONS = 4
KEYS = 1_000
WORDS = 100_000
SENTENCES = 10_000
_START_SECONDS = 180.0


@dataclass(frozen=True)
class Load:
    """The load, and its topics: `source` and `target` are new topics.

    The time starts when a record of each partition has its outputs: `warm_up` seconds that are not measured, then
    `seconds` that are. `words`: records are sentences of so many words, and each word is an output; 0: a record has one
    output. Outputs are missing when none has come for `patience` seconds after the last record was sent.
    """

    bootstrap: str
    source: str
    target: str
    committed: bool
    rate: float
    warm_up: float
    seconds: float
    words: int
    patience: float
    file: str

    @property
    def outputs(self) -> int:
        """How many outputs a record has."""
        return self.words or 1


@dataclass
class _Found:
    """Outputs so far. Those of records that were sent at `measured_from` or later are measured."""

    measured_from: float = float("inf")
    received: int = 0
    milliseconds: list[float] = field(default_factory=list)

    def take(self, messages: list[Message]) -> None:
        """Note outputs that were just read: the last word is the time at which the record was sent."""
        now = time.time()
        for message in messages:
            if message.error() is None:
                self.received += 1
                sent = float((message.value() or b"").rpartition(b" ")[2])
                if sent >= self.measured_from:
                    self.milliseconds.append((now - sent) * 1000)


class _Sender:
    """Sends records with the time in their value."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._producer = Producer({"bootstrap.servers": load.bootstrap, "linger.ms": 0})
        words = [each.decode() for each in zipf_keys(SENTENCES * load.words, WORDS)]
        self._texts = [
            " " + " ".join(words[each : each + load.words]) for each in range(0, len(words), load.words or 1)
        ]
        self.sent = 0

    def send_one_to_each_partition(self) -> None:
        for partition in range(PARTITIONS):
            self._produce(partition)
        self._producer.flush(_START_SECONDS)

    def send_all(self) -> None:
        """Send each record when it is due; records that a busy machine delays follow at once."""
        began, first = time.monotonic(), self.sent
        total = first + int(self._load.rate * (self._load.warm_up + self._load.seconds))
        while self.sent < total:
            due = min(total, first + int((time.monotonic() - began) * self._load.rate) + 1)
            while self.sent < due:
                self._produce()
            self._producer.poll(0)
            time.sleep(max(0.0, (due - first) / self._load.rate - (time.monotonic() - began)))
        self._producer.flush(self._load.patience)

    def _produce(self, partition: int = -1) -> None:
        text = self._texts[self.sent % SENTENCES] if self._texts else ""
        key = str(self.sent % KEYS)
        self._producer.produce(self._load.source, f"{time.time()!r}{text}", key, partition)
        self.sent += 1


def measure(load: Load) -> dict[str, int]:
    """Wait until the application works, send and read, and write the measured milliseconds to the file."""
    consumer = Consumer(
        {
            "bootstrap.servers": load.bootstrap,
            "group.id": "bench-latency",
            "isolation.level": "read_committed" if load.committed else "read_uncommitted",
            "fetch.wait.max.ms": 100,
            "fetch.min.bytes": 1,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(load.target, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
    sender = _Sender(load)
    found = _Found()
    sender.send_one_to_each_partition()
    _read(consumer, found, sender.sent * load.outputs, time.monotonic() + _START_SECONDS)
    if found.received < sender.sent * load.outputs:
        raise RuntimeError(f"{found.received} of {sender.sent * load.outputs} first outputs in {_START_SECONDS:.0f} s")
    expected = (sender.sent + int(load.rate * (load.warm_up + load.seconds))) * load.outputs
    found.measured_from = time.time() + load.warm_up
    thread = threading.Thread(target=sender.send_all)
    thread.start()
    _read(consumer, found, expected, time.monotonic() + load.warm_up + load.seconds + load.patience, load.patience)
    thread.join()
    consumer.close()
    np.save(load.file, np.array(found.milliseconds))
    return {"sent": sender.sent, "expected": expected, "received": found.received}


def _read(consumer: Consumer, found: _Found, expected: int, deadline: float, patience: float = 0.0) -> None:
    """Read until so many outputs came, or the time is over, which ends at least `patience` seconds after an output."""
    while found.received < expected and time.monotonic() < deadline:
        # `consume(500, t)` would return when t is over, unless 500 are there: it would add t to the latency.
        messages = consumer.consume(1, 0.02)
        if messages:
            found.take(messages + consumer.consume(500, 0))
            deadline = max(deadline, time.monotonic() + patience)


def main() -> None:
    """Measure one load."""
    load = Load(**json.loads(sys.argv[1]))
    # Pauses of this process would count as latency of the application.
    gc.disable()
    sys.setswitchinterval(0.0005)
    print(json.dumps(measure(load)), flush=True)


if __name__ == "__main__":
    main()
