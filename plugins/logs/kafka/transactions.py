"""A task's transactions: producing, and committing positions, under its transactional id, which is its fence."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from penstock.errors import FencedError, LogError

from .clients import Clients
from .failures import describe, error_of, is_retriable
from .producing import Outbox

_STUCK_SECONDS = 5.0
"""So much later than it should a call of librdkafka counts as one that never comes back."""


def transactional_id(application_id: str, task_id: str) -> str:
    """Return the one transactional id of a task."""
    return f"{application_id}-{task_id}"


class Transactions(Outbox):
    """An outbox whose records count when their transaction is committed. Used by one thread.

    Both guarantees use the same transactional id, so a task is fenced whichever of them its predecessor had.
    """

    def __init__(
        self, clients: Clients, count_partitions: Callable[[str], int], application_id: str, task_id: str
    ) -> None:
        self._id = transactional_id(application_id, task_id)
        self._application_id = application_id
        self._what = f"task {task_id} of application {application_id!r}"
        self._is_open = False
        super().__init__(clients, count_partitions, {"transactional.id": self._id})

    def take_fence(self) -> None:
        """Shut out every earlier producer with this id, and abort its transaction.

        Returns when that transaction is over, so what is read after it is final. Raises KafkaException, and LogError
        when the cluster does not allow it, or does not answer.
        """
        try:
            self._clients.patience.call(
                f"taking the fence of {self._what}", lambda seconds: self._producer.init_transactions(seconds), self
            )
        except KafkaException as exception:
            error = error_of(exception)
            needed = None if error is None else self._needed(error)
            if error is None or needed is None:
                raise
            raise LogError(f"{self._clients.where}: opening {self._what}: {describe(error)}: {needed}") from exception
        except LogError as error:
            try:
                self._producer.list_topics(timeout=1.0)
            except KafkaException:
                raise error from None
            raise LogError(
                f"{self._clients.where} answers, and did not begin transactions of {self._what} for "
                f"{self._clients.patience.timeout_s:g} s "
                "(task_timeout). They need the topic __transaction_state, which is made when the cluster has "
                "`transaction.state.log.replication.factor` brokers, and a leader of every partition that a "
                "transaction was left open in: see the brokers' logs"
            ) from error

    def begin(self) -> None:
        """Begin a transaction, unless one is open."""
        if not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True

    def commit(self, offsets: list[KafkaPartition], group: Consumer) -> None:
        """Commit the open transaction, with offsets of the group that a consumer belongs to."""
        if offsets:
            self._clients.patience.call(
                f"committing the positions of {self._what}",
                lambda seconds: self._send_offsets(offsets, group, seconds),
                self,
            )
        self._clients.patience.call(f"committing {self._what}", self._commit, self)
        self._is_open = False

    def abort(self, seconds: float) -> bool:
        """Abort the open transaction, if there is one. Return False when its end is not known after `seconds`: close this object then."""
        if self.is_over:
            return False
        try:
            if self._is_open:
                self._is_open = False
                self._producer.abort_transaction(seconds)
        except KafkaException as exception:
            error = error_of(exception)
            # A fenced producer aborts nothing: its successor has done that.
            return error is None or not is_retriable(error)
        finally:
            # Records that were given up have said so until here.
            self.failed = None
        return True

    def is_lost_by(self, error: KafkaError) -> bool:
        """Return whether an error ends the transaction, or the producer."""
        # Records wait no longer than their transaction may last.
        codes = (KafkaError._MSG_TIMED_OUT, KafkaError._STATE, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        return super().is_lost_by(error) or error.txn_requires_abort() or error.code() in codes

    # ------------------------------------------------------------------ inside

    def _commit(self, seconds: float) -> None:
        try:
            self._producer.commit_transaction(seconds)
        except KafkaException:
            self.check_topics()
            raise

    def _send_offsets(self, offsets: list[KafkaPartition], group: Consumer, seconds: float) -> None:
        """Put the offsets into the transaction.

        Another thread waits for that: librdkafka does not come back when the group's coordinator has left the cluster
        (its issue 5511).
        """
        metadata = group.consumer_group_metadata()
        done: Future[None] = Future()

        def send() -> None:
            try:
                self._producer.send_offsets_to_transaction(offsets, metadata, seconds)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        Thread(target=send, name="penstock-offsets", daemon=True).start()
        try:
            if not wait([done], seconds + _STUCK_SECONDS).done:
                self._clients.patience.call(
                    f"committing {self._what}", lambda left: group.list_topics(timeout=left), group
                )
                if not wait([done], _STUCK_SECONDS).done:
                    raise FencedError(
                        f"{self._what}: its transaction in {self._clients.where} was given up (the group's coordinator "
                        "has left the cluster): nothing since the last commit counts; open it again"
                    )
        except BaseException:
            # The other thread may be in the producer for ever: nobody else may use it.
            self.abandon()
            raise
        done.result()

    def _needed(self, error: KafkaError) -> str | None:
        """Return what a cluster has to allow for a fence; None where an error says nothing about that."""
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return (
                "penstock fences tasks at least once, too: allow Write and Describe on the transactional id "
                f"{self._id!r}, best on the prefix '{self._application_id}-'"
            )
        if error.code() in (KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE):
            return (
                "penstock needs brokers with transactions (Kafka 3.6 or later), at least once, too: it fences tasks by "
                "them"
            )
        return None
