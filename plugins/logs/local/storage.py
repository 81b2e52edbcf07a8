"""A local log's transactions with its topics; shared by the log, its committers and its leases."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock import Clock, LogError

from .catalogue import Catalogue, CatalogueTopics
from .environment import Environment, Options, acquire, release
from .layout import DamagedBatchError
from .transaction import Transaction


class LogStorage:
    """One log's use of the environment in its directory. Thread-safe."""

    def __init__(self, directory: str, options: Options, clock: Clock) -> None:
        self.clock = clock
        self._environment: Environment | None = acquire(directory, options)
        self.directory = self._environment.directory
        self.catalogue = Catalogue(self._environment)
        self._purges: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()

    @property
    def environment(self) -> Environment:
        """The environment. Raises LogError after `close`."""
        if self._environment is None:
            raise LogError(f"local log {self.directory}: this object was closed; open the log again")
        return self._environment

    @contextmanager
    def read(self) -> Iterator[tuple[Transaction, CatalogueTopics]]:
        """Open a read transaction; yields it, and the topics as it sees them."""
        with self.environment.read() as transaction:
            yield transaction, self.catalogue.topics(transaction)

    @contextmanager
    def write(self, what: str) -> Iterator[tuple[Transaction, CatalogueTopics]]:
        """Open the write transaction, apply requested purges, and commit durably at the end of the block."""
        with self.environment.write(what) as transaction:
            purges = dict(self._purges)
            for (topic_id, partition), before in purges.items():
                transaction.drop_before(topic_id, partition, before)
            yield transaction, self.catalogue.topics(transaction)
        for key, before in purges.items():
            with self._lock:
                if self._purges.get(key) == before:
                    del self._purges[key]

    def purge_later(self, topic_id: int, partition: int, before: int) -> None:
        """Purge with the next write: a purge alone is not worth an fsync."""
        with self._lock:
            self._purges[topic_id, partition] = max(before, self._purges.get((topic_id, partition), 0))

    def purge_now(self) -> None:
        """Apply the requested purges."""
        if self._purges:
            with self.write("purge"):
                pass

    def close(self) -> None:
        """Give the environment back; idempotent."""
        with self._lock:
            environment, purges = self._environment, bool(self._purges)
        if environment is None:
            return
        if purges:
            # A purge that fails is requested again by the next process of the application.
            with suppress(LogError):
                self.purge_now()
        with self._lock:
            environment, self._environment = self._environment, None
        if environment is not None:
            release(environment)


@contextmanager
def naming_damage(storage: LogStorage, topic: str, partition: int) -> Iterator[None]:
    """Raise LogError naming topic and partition when a stored batch is damaged."""
    try:
        yield
    except DamagedBatchError as error:
        raise LogError(
            f"local log {storage.directory}: topic {topic!r} partition {partition} is damaged: {error}. Restore "
            "data.mdb from a copy, or purge the partition up to a later offset"
        ) from error
