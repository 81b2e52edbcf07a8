"""Kafka's errors: their meaning, and how long calls are tried again while brokers are away."""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from penstock import ConfigError, LogError
from penstock.support.system_errors import error_number, open_files_advice

_log = logging.getLogger("penstock.kafka")
T = TypeVar("T")

LOCAL_ERRORS: Mapping[int, bool] = {
    # The same call may succeed later: a broker left, came back or moved, or the client has not heard of something yet.
    KafkaError._ALL_BROKERS_DOWN: True,
    KafkaError._DESTROY: True,  # the connection that a request waited for was given up, as a broker left
    -137: True,  # _DESTROY_BROKER: the same, of a broker that the cluster does not list any more; new in 2.13
    KafkaError._INTR: True,
    KafkaError._ISR_INSUFF: True,
    KafkaError._NODE_UPDATE: True,
    KafkaError._OUTDATED: True,  # the answer of a coordinator that has changed
    KafkaError._QUEUE_FULL: True,
    KafkaError._RESOLVE: True,  # the name of a pod that is started again is unknown for a while
    KafkaError._RETRY: True,
    KafkaError._TIMED_OUT: True,
    KafkaError._TIMED_OUT_QUEUE: True,
    KafkaError._TRANSPORT: True,
    KafkaError._UNKNOWN_BROKER: True,
    KafkaError._WAIT_CACHE: True,
    KafkaError._WAIT_COORD: True,
    # These are about what was asked, about this client, or about what another call must put right first.
    **dict.fromkeys(
        [
            KafkaError._APPLICATION, KafkaError._ASSIGNMENT_LOST, KafkaError._ASSIGN_PARTITIONS,
            KafkaError._AUTHENTICATION, KafkaError._AUTO_OFFSET_RESET, KafkaError._BAD_COMPRESSION,
            KafkaError._BAD_MSG, KafkaError._CONFLICT, KafkaError._CRIT_SYS_RESOURCE, KafkaError._EXISTING_SUBSCRIPTION,
            KafkaError._FAIL, KafkaError._FATAL, KafkaError._FENCED, KafkaError._FS, KafkaError._GAPLESS_GUARANTEE,
            KafkaError._INCONSISTENT, KafkaError._INVALID_ARG, KafkaError._INVALID_DIFFERENT_RECORD,
            KafkaError._INVALID_TYPE, KafkaError._IN_PROGRESS, KafkaError._KEY_DESERIALIZATION,
            KafkaError._KEY_SERIALIZATION, KafkaError._LOG_TRUNCATION, KafkaError._MAX_POLL_EXCEEDED,
            KafkaError._MSG_TIMED_OUT, KafkaError._NOENT, KafkaError._NOOP, KafkaError._NOT_CONFIGURED,
            KafkaError._NOT_IMPLEMENTED, KafkaError._NO_OFFSET, KafkaError._PARTIAL, KafkaError._PARTITION_EOF,
            KafkaError._PREV_IN_PROGRESS, KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE, KafkaError._READ_ONLY,
            KafkaError._REVOKE_PARTITIONS, KafkaError._SSL, KafkaError._STATE, KafkaError._UNDERFLOW,
            KafkaError._UNKNOWN_GROUP, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_PROTOCOL,
            KafkaError._UNKNOWN_TOPIC, KafkaError._UNSUPPORTED_FEATURE, KafkaError._VALUE_DESERIALIZATION,
            KafkaError._VALUE_SERIALIZATION, KafkaError.UNKNOWN,
        ],
        False,
    ),
}  # fmt: skip
"""librdkafka's own errors, all of them: whether the same call may succeed later. A test finds those of a later release
that are not decided here."""
_RETRIABLE = frozenset(
    [
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    ]
)
"""Errors of brokers after which the same call may succeed later; those that Kafka's protocol calls retriable, as far as
a request of penstock's can get them, but for topics that are unknown (`_NO_TOPIC`)."""
_FENCED = frozenset(
    [
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    ]
)
_REFUSED = {
    KafkaError._AUTHENTICATION: "the credentials are refused",
    KafkaError.SASL_AUTHENTICATION_FAILED: "the credentials are refused",
    KafkaError._SSL: "the TLS connection failed",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "access to the topic is denied",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "access to the consumer group is denied",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "access to the cluster is denied",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "use of the transactional id is denied",
}
_NO_TOPIC = frozenset(
    [
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    ]
)

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0
_LONGEST_TRY = 10.0
_RECENT_SECONDS = 35.0
"""Seconds for which a connection's error counts as recent: librdkafka reports a repeated one every 30 s."""
_SAYS_AFTER, _SAYS_LATER, _SAYS_EVERY = 1.0, 10.0, 60.0
"""Seconds until the first log line about waiting, after a failed connection and otherwise; seconds between two
lines."""


def error_of(error: KafkaError | BaseException) -> KafkaError | None:
    """Return the KafkaError inside an exception of confluent-kafka, or the argument itself."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return None


@contextmanager
def fatal_errors_as_kafka_exceptions() -> Iterator[None]:
    """Raise the KafkaException of a fatal error in place of a SystemError.

    confluent-kafka raises it while it serves callbacks, and then calls `on_delivery` with that exception set, which
    Python reports as a SystemError.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


def is_retriable(error: KafkaError | BaseException) -> bool:
    """Return whether the same call may succeed later, as none does when its transaction has to be aborted."""
    found = error_of(error)
    if found is None or found.fatal() or found.txn_requires_abort():
        return False
    return bool(found.retriable() or LOCAL_ERRORS.get(found.code(), found.code() in _RETRIABLE))


def is_fenced(error: KafkaError) -> bool:
    """Return whether another producer has taken over the transactional id."""
    return error.code() in _FENCED


def is_unknown_topic(error: KafkaError | BaseException) -> bool:
    """Return whether the topic or the partition does not exist."""
    found = error_of(error)
    return found is not None and found.code() in _NO_TOPIC


def is_without_brokers(error: KafkaError) -> bool:
    """Return whether a controller refuses a new topic because no broker is registered: it starts, or was frozen."""
    is_it = re.search("are currently fenced|only 0 broker", error.str())
    return error.code() == KafkaError.INVALID_REPLICATION_FACTOR and is_it is not None


def describe(error: KafkaError) -> str:
    """Return one line for an error: its meaning, and Kafka's own text."""
    text = re.sub(r" \(after \d+ms in state \w+\)", "", re.sub(r"\s+", " ", error.str())).strip()
    meaning = _REFUSED.get(error.code())
    return f"{meaning} ({text})" if meaning else text


def is_refused(error: KafkaError) -> bool:
    """Return whether a broker answers and refuses these clients."""
    return error.code() in _REFUSED or "SSL handshake failed" in error.str()


def is_out_of_files(text: str) -> bool:
    """Return whether an error is due to too many open files, of this process or the host: waiting does not help."""
    return error_number(text) in (errno.EMFILE, errno.ENFILE)


def as_config_error(error: BaseException, where: str) -> ConfigError | None:
    """Return the error for a client property that librdkafka refuses; None for a KafkaError of another kind."""
    found = error_of(error)
    text = found.str() if found is not None else str(error)
    if found is not None and found.code() not in (KafkaError._INVALID_ARG, KafkaError._CONFLICT):
        return None
    # librdkafka quotes the value it refuses, and that may be a secret.
    text = re.sub(r'(Invalid value) ".*?"( for)', r"\1\2", text)
    return ConfigError(f"{where}: the client settings are refused: {text}")


class KafkaClient(Protocol):
    """A client of confluent-kafka."""

    def poll(self, timeout: float, /) -> object:
        """Deliver the errors of its connections to its callbacks."""
        ...


class Patience:
    """Tries calls again while brokers are away, for up to `timeout_s` (`task_timeout`). `where` names the cluster.

    A cluster that refuses these clients is not tried again, unless it has answered before: a starting broker may
    refuse.
    """

    def __init__(self, where: str, timeout_s: float) -> None:
        self.where = where
        self.timeout_s = timeout_s
        self._connection_error: KafkaError | None = None
        self._connection_failed_at = 0.0
        self._has_answered = False

    def note_connection_error(self, error: KafkaError) -> None:
        """Keep the error of a connection, for messages."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._connection_error, self._connection_failed_at = error, time.monotonic()

    def _recent_connection_error(self) -> KafkaError | None:
        return self._connection_error if time.monotonic() - self._connection_failed_at < _RECENT_SECONDS else None

    def call(self, doing: str, call: Callable[[float], T], client: KafkaClient | None = None, first: float = 1.0) -> T:
        """Return `call(seconds)`, tried again after retriable errors. Raises LogError when `timeout_s` is over.

        Raises KafkaException for other errors. `seconds`: the maximum duration of a try; `first`: the same for the
        first try. `client`: polled for the errors of its connections.
        """
        began = time.monotonic()
        deadline, said_at, most, wait = began + self.timeout_s, 0.0, first, _FIRST_WAIT
        self._connection_error = None
        told: KafkaError | None = None  # the last error but that of a try which the deadline has cut short
        while True:
            left = deadline - time.monotonic()
            try:
                answer = call(max(0.1, min(most, left)))
            except KafkaException as exception:
                error = error_of(exception)
                if error is None or not is_retriable(error):
                    raise
                if told is None or left >= most or error.code() != KafkaError._TIMED_OUT:
                    told = error
                if client is not None:
                    client.poll(0)
                connection_error = self._recent_connection_error()
                reason = connection_error or error
                if is_out_of_files(reason.str()) or (is_refused(reason) and not self._has_answered):
                    raise self.failed(doing, reason) from exception
                if deadline - time.monotonic() <= wait:
                    raise self.timed_out(f"while {doing}", told) from exception
                now = time.monotonic()
                if now - said_at >= _SAYS_EVERY and now - began >= (_SAYS_AFTER if connection_error else _SAYS_LATER):
                    said_at = now
                    _log.warning(
                        "waiting for %s, for %.0f s at most (task_timeout), while %s: %s",
                        self.where, deadline - now, doing, describe(reason) + _hint(reason),
                    )  # fmt: skip
            else:
                self._has_answered = True
                if said_at:
                    _log.warning("%s answers again, after %.0f s", self.where, time.monotonic() - began)
                return answer
            time.sleep(wait)
            wait, most = min(_LONGEST_WAIT, wait * 2), min(_LONGEST_TRY, most * 2)

    def timed_out(self, doing: str, error: KafkaError | None = None) -> LogError:
        """Return the LogError for a cluster that did not answer for too long."""
        reason = self._recent_connection_error() or error
        return LogError(
            f"{self.where} did not answer for {self.timeout_s:g} s (task_timeout) {doing}"
            + (f": {describe(reason)}{_hint(reason)}" if reason is not None else "")
            + ". Is it running, and are the address and security.protocol right? Nothing since the last commit counts, "
            "and nothing is lost: start again when it is back"
        )

    def out_of_time(self, error: LogError, client: Consumer | Producer, not_done: str, advice: str) -> LogError:
        """Return the error of a call that waits for transactions, after it has failed with `error`.

        If brokers answer the client, it says what was `not_done`, and `advice`.
        """
        try:
            client.list_topics(timeout=1.0)
        except KafkaException:
            return error
        return LogError(f"{self.where} answers, and {not_done} for {self.timeout_s:g} s (task_timeout). {advice}")

    @contextmanager
    def naming(self, doing: str) -> Iterator[None]:
        """Raise the LogError of `failed` for a KafkaException of the block."""
        try:
            yield
        except KafkaException as exception:
            raise self.failed(doing, exception) from exception

    def failed(self, doing: str, cause: KafkaError | KafkaException) -> LogError:
        """Return the LogError for an error that is not retriable."""
        error = error_of(cause)
        return LogError(f"{self.where}: {doing}: {cause if error is None else describe(error) + _hint(error)}")


def _hint(error: KafkaError) -> str:
    """Return advice for an error; empty where there is none."""
    if error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        return ": correct sasl.username and sasl.password (or sasl.mechanism) among the client settings"
    if error.code() == KafkaError._SSL or "SSL" in error.str():
        return ": check security.protocol and the ssl.* client settings"
    if error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT:
        return ": a transaction has not ended (`kafka-transactions.sh find-hanging` finds one that never will)"
    if is_out_of_files(error.str()):
        return f": {open_files_advice()}"
    return ""
