"""A task's transactions: producing and committing positions under its transactional id, which is its fence."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from penstock import FencedError, LogError

from .clients import Clients
from .failures import describe, error_of, fatal_errors_as_kafka_exceptions, is_retriable
from .producing import Outbox, end

_DELIVER_SECONDS = 0.1
_STUCK_SECONDS = 5.0
"""Seconds after its time limit from which a call of librdkafka counts as stuck."""


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
        self._is_committing = False
        """Whether a call to commit has had no answer."""
        self._is_aborting = False
        """Whether a call to abort has had no answer."""
        super().__init__(clients, count_partitions, {"transactional.id": self._id})

    def take_fence(self) -> None:
        """Fence every earlier producer with this id, and abort its transaction.

        When this returns, that transaction is over, so positions that are read later are final. Raises KafkaException,
        and LogError when the cluster does not allow it, or does not answer.
        """
        try:
            self._clients.patience.call(
                f"taking the fence of {self._what} (transactional id {self._id!r})",
                lambda seconds: self._producer.init_transactions(seconds),
                self,
            )
        except LogError as late:
            raise self._clients.patience.out_of_time(
                late,
                self._producer,
                f"did not begin transactions of {self._what}",
                "They need the topic __transaction_state, which is created when the cluster has "
                "`transaction.state.log.replication.factor` brokers, and a leader of every partition with an open "
                "transaction: see the brokers' logs",
            ) from None
        except KafkaException as exception:
            error = error_of(exception)
            needed = None if error is None else self._needed(error)
            if error is None or needed is None:
                raise
            raise LogError(f"{self._clients.where}: opening {self._what}: {describe(error)}: {needed}") from exception

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
        """Abort the open transaction, if any. Return False if its end is unknown after `seconds`: then close this."""
        if self.is_over:
            return False
        try:
            if self._is_open:
                self._is_open = False
                self._is_aborting = not self._is_committing
                with fatal_errors_as_kafka_exceptions():
                    self._producer.abort_transaction(seconds)
                self._is_aborting = False
        except KafkaException as exception:
            # A fenced producer aborts nothing: its successor has done that.
            is_known = not is_retriable(exception)
            self._is_aborting = self._is_aborting and not is_known
            return is_known
        finally:
            # Until here, delivery reports of records that were given up may arrive.
            self._failures.forget()
        return True

    def is_lost_by(self, error: KafkaError) -> bool:
        """Return whether an error ends the transaction, or the producer."""
        # The time limit of a record is that of its transaction.
        codes = (KafkaError._MSG_TIMED_OUT, KafkaError._STATE, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        return super().is_lost_by(error) or error.txn_requires_abort() or error.code() in codes

    def close(self) -> None:
        """Give up undelivered records, and end the producer when it is idle and its transaction is over; idempotent."""
        if not self.is_over:
            end(self._take_producer(), is_committing=self._is_committing, is_aborting=self._is_aborting)

    # ------------------------------------------------------------------ inside

    def _commit(self, seconds: float) -> None:
        self._is_committing = True
        try:
            with fatal_errors_as_kafka_exceptions():
                self._producer.commit_transaction(seconds)
        except KafkaException as exception:
            self._is_committing = is_retriable(exception)
            self.check_topics()
            raise
        self._is_committing = False

    def _send_offsets(self, offsets: list[KafkaPartition], group: Consumer, seconds: float) -> None:
        """Put the offsets into the transaction.

        Another thread waits for that: librdkafka does not come back when the group's coordinator has left the cluster
        (its issue 5511).
        """
        metadata = group.consumer_group_metadata()
        done: Future[None] = Future()

        def send(producer: Producer) -> None:
            try:
                producer.send_offsets_to_transaction(offsets, metadata, seconds)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)
            if self.is_over:
                end(producer, is_aborting=True)
            # The error's traceback keeps this frame, which would keep the producer.
            del producer

        Thread(target=send, args=(self._producer,), name="penstock-offsets", daemon=True).start()
        try:
            self._deliver_until(done)
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
            self._leave_producer_to(done)
            raise
        done.result()

    def _deliver_until(self, done: Future[None]) -> None:
        """Deliver sent records until a call is over: else only the commit would begin to deliver."""
        try:
            while not done.done() and self._flush(_DELIVER_SECONDS):
                pass
        except KafkaException:
            pass  # the call fails, too, or the commit after it does

    def _leave_producer_to(self, call: Future[None]) -> None:
        """Let the thread of a call end the producer: the call may never return, and no other thread may use it then."""
        producer = self._take_producer()
        if call.done():
            end(producer, is_aborting=True)

    def _needed(self, error: KafkaError) -> str | None:
        """Return the permissions that a fence needs; None for an error that is not about permissions."""
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
