"""Several real Kafka brokers that replicate to each other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock import RuntimeUnavailableError

from .broker import KafkaBroker, temporary_directory
from .prepared import STARTS_FAST
from .process import POLL_SECONDS, START_SECONDS, Server
from .properties import replicated


class KafkaCluster(Server):
    """Several brokers, each topic replicated to all of them: `with KafkaCluster(2) as cluster: ...`.

    The first broker is the only controller: kill another one. What a dead broker led moves after three seconds. A
    producer's write is answered by the replicas that are alive. `options` are settings of each broker.
    """

    def __init__(
        self,
        brokers: int = 2,
        directory: str | Path | None = None,
        *,
        heap: str = "512m",
        jvm_options: Sequence[str] = STARTS_FAST,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = Path(directory or temporary_directory()).absolute()
        chosen = {**replicated(brokers), **(options or {})}
        self.brokers = [
            KafkaBroker(self.directory / f"broker-{number}", heap=heap, jvm_options=jvm_options, options=chosen)
            for number in range(1, brokers + 1)
        ]
        """In the order of their node ids, which start at 1."""
        if directory is None:
            for broker in self.brokers:
                broker.disposable = self.directory

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, with commas."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start the brokers that do not run, and return when all are ready."""
        first = self.brokers[0]
        first.start()
        for number, broker in enumerate(self.brokers[1:], start=2):
            broker.join(first, number)
            broker.start()
        deadline = time.monotonic() + START_SECONDS
        while not all(len(broker.known_brokers()) == len(self.brokers) for broker in self.brokers):
            if time.monotonic() > deadline:
                raise RuntimeUnavailableError(
                    f"the Kafka brokers in {self.directory} did not find each other in {START_SECONDS:.0f} s; see "
                    "the broker.log of each"
                )
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End all brokers in order, the controller last."""
        for broker in reversed(self.brokers):
            broker.stop()

    def close(self) -> None:
        """End all brokers, and remove their directory if that is a temporary one."""
        for broker in reversed(self.brokers):
            broker.close()
