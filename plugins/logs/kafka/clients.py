"""Consumers, producers and the admin client of one cluster, with this project's defaults and the user's settings."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock import ConfigError, LogError
from penstock.settings.names import CLIENT_PREFIXES
from penstock.support.system_errors import open_files_advice

from .admin import Admin
from .client_names import JAVA_ONLY, RENAMED, advice
from .columns import QueueingProducer, Reader, producer, reader
from .failures import Patience, as_config_error, is_out_of_files

_log = logging.getLogger("penstock.kafka")
T = TypeVar("T")

_OWN = ("processing.guarantee", "task.timeout.ms", "replication.factor", "sends.at.once")
_MANAGED = {
    "group.id": "the application's id",
    "transactional.id": "one for each task, <application id>-<task id>",
    "enable.auto.commit": "positions are committed with the outputs",
    "enable.auto.offset.store": "positions are committed with the outputs",
    "auto.offset.reset": "set `offset_reset`, and `offset_out_of_range` for positions that the topic no longer has",
    "enable.partition.eof": "penstock finds the end of a partition by it",
    "bootstrap.servers": 'set `log="kafka:HOST:PORT"`',
}
_COMMON = {
    "client.id": "penstock",
    "topic.metadata.refresh.interval.ms": 60_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
    "allow.auto.create.topics": False,
}
FETCH_WAIT_MS = 20
"""How long a broker delays the answer to a consumer that is at the end of a partition."""
_CONSUMER = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "check.crcs": False,
    "fetch.wait.max.ms": FETCH_WAIT_MS,
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 2,
    "max.partition.fetch.bytes": 2 * 1024 * 1024,
    "queued.max.messages.kbytes": 8 * 1024,
    "queued.min.messages": 100_000,
}
_SERVER = re.compile(r"(\w+://)?[^\s/?@#=&;]+")
"""A broker's address, with or without a security protocol, which librdkafka takes, too."""
_BATCH_BYTES = 1_000_000
_LINGER_MS, _TRANSACTION_LINGER_MS = 5, 200
"""How long a producer waits for more records, and one with transactions where the others do not wait: nobody reads its
records before the commit, which sends what waits. A request for each record would keep the broker busy."""
_PRODUCER = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "sticky.partitioning.linger.ms": 0,
    # A transaction that begins before the markers of the last one are written is refused, and tried again after this.
    "retry.backoff.ms": 5,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
    "delivery.report.only.error": True,
    "transaction.timeout.ms": 60_000,
    "message.max.bytes": 1_000_000_000,
}


class Clients:
    """Makes clients of one cluster. `settings` are the application's `clients` setting and penstock's own options.

    Raises ConfigError for properties that penstock sets itself, and for unknown ones.
    """

    def __init__(self, location: str, settings: Mapping[str, str]) -> None:
        if not all(_SERVER.fullmatch(each.strip()) for each in location.split(",")):
            # It may have a password, so it is not in the message.
            raise ConfigError(
                "setting 'log': expected \"kafka:HOST:PORT[,HOST:PORT]\"; a user, a password and other settings of the "
                "clients have their place in the setting 'clients'"
            )
        self.location = location
        self.where = f"Kafka at {location}"
        self.guarantee = settings.get("processing.guarantee", "exactly_once")
        self._sends_at_once = settings.get("sends.at.once") == "true"
        self.replication = int(settings.get("replication.factor", "-1"))
        self.patience = Patience(self.where, float(settings.get("task.timeout.ms", "300000")) / 1000)
        self.admin = Admin(lambda: self._make(AdminClient, "admin", {}), self.patience)
        self._most_batch_bytes = _BATCH_BYTES
        self._common: dict[str, Any] = {}
        self._own: dict[str, dict[str, Any]] = {kind: {} for kind in CLIENT_PREFIXES}
        for name, value in settings.items():
            if name not in _OWN:
                self._take(name, value)

    def _take(self, name: str, value: str) -> None:
        kind, _, rest = name.partition(".")
        target = self._own[kind] if kind in CLIENT_PREFIXES else self._common
        plain = rest if kind in CLIENT_PREFIXES else name
        if plain in _MANAGED:
            raise ConfigError(f"client setting {name!r} is not yours to set: {_MANAGED[plain]}")
        if plain in JAVA_ONLY:
            raise ConfigError(f"client setting {name!r} is one of Java's clients: {advice(plain)}")
        target[RENAMED.get(plain, plain)] = value

    # ------------------------------------------------------------------ making clients

    def consumer(self, group: str, properties: Mapping[str, Any] | None = None) -> Consumer:
        """Return a consumer that belongs to `group` and subscribes to nothing."""
        return self._make(Consumer, "consumer", {**_CONSUMER, "group.id": group, **(properties or {})})

    def reader(self, group: str, properties: Mapping[str, Any] | None = None) -> Reader:
        """Return the same as `consumer`, to take messages by column."""
        return self._make(reader, "consumer", {**_CONSUMER, "group.id": group, **(properties or {})})

    def producer(self, properties: Mapping[str, Any] | None = None) -> QueueingProducer:
        """Return an idempotent producer, or a transactional one when `transactional.id` is given."""
        chosen = {**_PRODUCER, "linger.ms": _LINGER_MS, **(properties or {})}
        chosen["batch.size"] = self._most_batch_bytes
        if self._sends_at_once:
            chosen["linger.ms"] = _TRANSACTION_LINGER_MS if "transactional.id" in chosen else 0
        if "transactional.id" not in chosen:
            chosen["message.timeout.ms"] = max(1000, int(self.patience.timeout_s * 1000))
        return self._make(producer, "producer", chosen)

    def admin_at(self, address: str) -> AdminClient:
        """Return an admin client whose first request goes to the broker at this address."""
        return self._make(AdminClient, "admin", {}, address)

    @property
    def transaction_seconds(self) -> float:
        """How long a transaction may last before its coordinator aborts it (`transaction.timeout.ms`)."""
        own = self._own["producer"].get("transaction.timeout.ms", self._common.get("transaction.timeout.ms"))
        return float(str(own or _PRODUCER["transaction.timeout.ms"])) / 1000

    def limit_batches(self, most_bytes: int) -> bool:
        """Let later producers send no batch above `most_bytes`; return whether the limit was higher before."""
        is_lower = most_bytes < self._most_batch_bytes
        self._most_batch_bytes = min(self._most_batch_bytes, most_bytes)
        return is_lower

    def _make(self, kind: Callable[..., T], name: str, properties: dict[str, Any], address: str = "") -> T:
        chosen = {
            **_COMMON,
            **properties,
            **self._common,
            **self._own[name],
            "bootstrap.servers": address or self.location,
            "error_cb": self._failed,
        }
        if name == "admin":
            chosen.pop("allow.auto.create.topics")
        try:
            return kind(chosen, logger=_Librdkafka())
        except (KafkaException, TypeError, ValueError) as error:
            if is_out_of_files(str(error)):
                raise LogError(f"{self.where}: cannot make a client ({error}): {open_files_advice()}") from error
            raise as_config_error(error, f"log {self.location!r}, {name}") or error from None

    def _failed(self, error: KafkaError) -> None:
        self.patience.note_connection_error(error)
        _log.debug("%s: %s", self.where, error)


class _Librdkafka:
    """Logs librdkafka's messages at level DEBUG: where a failed connection matters, an error of penstock reports it."""

    def log(self, level: int, message: str, *arguments: object) -> None:
        _log.debug(message, *arguments)
