"""The commit points of a task: a Kafka transaction, or outputs flushed and then positions committed."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from penstock.errors import FencedError, LogError, PenstockError, ProductionError
from penstock.log import Commit, TaskCommitter
from penstock.record import OutputBatch, TopicPartition

from ..messages import fenced
from .clients import Clients
from .failures import FOREIGN_MEMBERS, describe, error_of, has_members, is_fenced, is_retriable
from .positions import from_kafka, plain, to_kafka
from .producing import Outbox

_ABORT_SECONDS = 5.0
"""A transaction that takes longer is left to the next committer, whose opening aborts it."""
_STUCK_SECONDS = 5.0
"""So much later than it should a call of librdkafka counts as one that never comes back."""
_RENEWAL_SECONDS = 12 * 3600.0
"""Brokers forget the offsets of a group without members when nobody commits them for `offsets.retention.minutes`."""


class KafkaCommitter(TaskCommitter):
    """What both guarantees share. `consumer` belongs to the application's group, and asks for its offsets."""

    streams_outputs = True

    def __init__(
        self,
        clients: Clients,
        application_id: str,
        task_id: str,
        partitions: Sequence[TopicPartition],
    ) -> None:
        self._clients = clients
        self._patience = clients.patience
        self._application_id = application_id
        self._task_id = task_id
        self._partitions = tuple(partitions)
        self._what = f"task {task_id} of application {application_id!r}"
        self._committed: Commit | None = None
        self._committed_at = 0.0
        self._outbox: Outbox | None = None
        self._consumer: Consumer | None = None

    @property
    def committed(self) -> Commit | None:
        """The last commit."""
        return self._committed

    def is_current(self) -> bool:
        """Return whether the committed positions are those that this object left."""
        if self._outbox is None:
            return False
        return self._read() == self._committed

    def expires(self) -> bool:
        """Return whether the positions should be committed again, so that brokers do not forget them."""
        return self._committed is not None and time.time() >= self._committed_at + _RENEWAL_SECONDS

    def send(self, outputs: Sequence[OutputBatch]) -> None:
        """Produce ahead of the commit."""
        self._begin()
        try:
            for batch in outputs:
                self._open_outbox().send(batch)
        except ProductionError as exception:
            lost = self._lost_by(exception)
            self._undo()
            if lost is not None:
                raise lost from exception
            raise
        except KafkaException as exception:
            # A producer that is lost says so at any call.
            failed = self._failed(f"producing for {self._what}", exception)
            self._undo()
            raise failed from exception
        except BaseException:
            self._undo()
            raise

    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        """Make outputs, positions and version visible."""
        self.send(outputs)
        offsets = to_kafka(self._task_id, commit)
        try:
            self._finish(offsets)
        except (FencedError, ProductionError):
            self._undo()
            raise
        except BaseException:
            # Whether the broker has it is unknown.
            self.close()
            raise
        self._committed = commit
        self._committed_at = time.time()

    def close(self) -> None:
        """Release everything; what was sent and not committed is given up."""
        outbox, self._outbox = self._outbox, None
        consumer, self._consumer = self._consumer, None
        if outbox is not None:
            self._give_up(outbox)
            outbox.close()
        if consumer is not None:
            consumer.close()

    # ------------------------------------------------------------------ for each guarantee

    @abstractmethod
    def _take_fence(self) -> None:
        """Shut out whoever held the task before, where that can be done."""

    @abstractmethod
    def _begin(self) -> None:
        """Get ready to produce."""

    @abstractmethod
    def _finish(self, offsets: list[KafkaPartition]) -> None:
        """Make everything sent count, with the offsets."""

    @abstractmethod
    def _undo(self) -> None:
        """Make everything sent since the last commit count for nothing; leave the object ready for another try, if it can be."""

    @abstractmethod
    def _give_up(self, outbox: Outbox) -> None:
        """Undo before closing; raises nothing."""

    # ------------------------------------------------------------------ inside

    def _open(self) -> None:
        """Take the fence and read the last commit; close everything when that fails."""
        try:
            self._take_fence()
            self._committed = self._read()
        except KafkaException as exception:
            failed = self._failed(f"opening {self._what}", exception)
            self.close()
            raise failed from exception
        except BaseException:
            self.close()
            raise

    def _open_outbox(self) -> Outbox:
        if self._outbox is None:
            raise LogError(
                f"{self._what}: this committer was closed, or the outcome of its last commit is unknown: open another "
                "and read `committed`"
            )
        return self._outbox

    def _read(self) -> Commit | None:
        assert self._consumer is not None
        consumer = self._consumer
        if not self._partitions:
            return None
        found = self._patience.call(
            f"reading the positions of {self._what}",
            lambda seconds: consumer.committed(plain(self._partitions), timeout=seconds),
            consumer,
        )
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        commit, self._committed_at = from_kafka(self._task_id, found)
        return commit

    def _failed(self, doing: str, exception: KafkaException) -> PenstockError:
        """Return what an exception of Kafka's means for a commit."""
        error = error_of(exception)
        if error is None:
            return LogError(f"{self._clients.where}: {doing}: {exception}")
        if is_fenced(error):
            return fenced(self._application_id, self._task_id)
        if error.code() in FOREIGN_MEMBERS:
            return has_members(self._clients.where, self._application_id)
        error = self._lost_producer() or error
        outbox = self._outbox
        if outbox is not None and outbox.failed is not None:
            # What a record failed with says more than what the transaction did because of it.
            topic, delivery = outbox.failed
            return self._lost(delivery) if self._is_lost(delivery) else outbox.error(topic, delivery)
        if self._is_lost(error):
            return self._lost(error)
        return LogError(f"{self._clients.where}: {doing}: {describe(error)}. Nothing since the last commit counts")

    def _lost_producer(self) -> KafkaError | None:
        """Have the producer tell which records failed, and return what it was lost by; None if it can go on."""
        try:
            if self._outbox is not None:
                self._outbox.producer.poll(0)
        except KafkaException as fatal:
            return error_of(fatal)
        return None

    def _is_lost(self, error: KafkaError) -> bool:
        """Return whether the producer can do nothing any more, and another has to be opened."""
        return is_fenced(error) or error.fatal() or error.code() == KafkaError._FATAL

    def _lost(self, error: KafkaError) -> FencedError:
        if is_fenced(error) or error.code() == KafkaError._FATAL:
            return fenced(self._application_id, self._task_id)
        return FencedError(
            f"{self._what}: its transaction in {self._clients.where} was given up ({describe(error)}): "
            "nothing since the last commit counts; open it again"
        )

    def _lost_by(self, exception: ProductionError) -> FencedError | None:
        """Return the error for a record that was not taken because the producer is lost; None if it is the record's own."""
        self._lost_producer()
        failed = self._outbox.failed if self._outbox is not None else None
        cause = exception.__cause__
        error = failed[1] if failed is not None else error_of(cause) if cause is not None else None
        return self._lost(error) if error is not None and self._is_lost(error) else None


class ExactlyOnce(KafkaCommitter):
    """A transaction for each commit, with one transactional id for the task: opening it shuts out, and aborts, a predecessor."""

    def __init__(
        self,
        clients: Clients,
        application_id: str,
        task_id: str,
        partitions: Sequence[TopicPartition],
        count_partitions: Callable[[str], int],
    ) -> None:
        super().__init__(clients, application_id, task_id, partitions)
        self._in_transaction = False
        self._outbox = Outbox(
            clients, count_partitions, {"transactional.id": transactional_id(application_id, task_id)}
        )
        self._consumer = clients.consumer(application_id, {"isolation.level": "read_committed"})
        self._open()

    def _take_fence(self) -> None:
        # Its answer waits until the predecessor's transaction is over, so what is read after it is final.
        producer = self._open_outbox().producer
        self._patience.call(f"taking the fence of {self._what}", producer.init_transactions, producer)

    def _begin(self) -> None:
        if self._in_transaction:
            return
        producer = self._open_outbox().producer
        try:
            producer.begin_transaction()
        except KafkaException as exception:
            raise self._failed(f"beginning a transaction of {self._what}", exception) from exception
        self._in_transaction = True

    def _finish(self, offsets: list[KafkaPartition]) -> None:
        outbox = self._open_outbox()
        producer = outbox.producer
        assert self._consumer is not None
        group = self._consumer.consumer_group_metadata()
        try:
            if offsets:
                self._patience.call(
                    f"committing the positions of {self._what}",
                    lambda seconds: self._send_offsets(producer, offsets, group, seconds),
                    producer,
                )
            self._patience.call(f"committing {self._what}", lambda seconds: _commit(outbox, seconds), producer)
        except KafkaException as exception:
            raise self._failed(f"committing {self._what}", exception) from exception
        self._in_transaction = False

    def _undo(self) -> None:
        outbox = self._outbox
        if outbox is None:
            return
        if self._in_transaction:
            self._in_transaction = False
            try:
                outbox.producer.abort_transaction(_ABORT_SECONDS)
            except KafkaException as exception:
                error = error_of(exception)
                # A fenced producer aborts nothing: its successor has done that.
                if error is not None and is_retriable(error):
                    self._outbox = None
                    outbox.close()
        outbox.failed = None

    def _is_lost(self, error: KafkaError) -> bool:
        # Records wait no longer than their transaction may last.
        codes = (KafkaError._MSG_TIMED_OUT, KafkaError._STATE)
        return super()._is_lost(error) or error.txn_requires_abort() or error.code() in codes

    @property
    def commit_within(self) -> float:
        """Half the time that a transaction may last: producing what is left takes some of it."""
        return self._clients.transaction_seconds / 2

    def _send_offsets(self, producer: Producer, offsets: list[KafkaPartition], group: Any, seconds: float) -> None:
        """Put the offsets into the transaction.

        Another thread waits for that: librdkafka does not come back when the group's coordinator has left the cluster (its issue 5511).
        """
        done: Future[None] = Future()

        def send() -> None:
            try:
                producer.send_offsets_to_transaction(offsets, group, seconds)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        Thread(target=send, name="penstock-offsets", daemon=True).start()
        if not wait([done], seconds + _STUCK_SECONDS).done:
            # Nobody may touch the producer while it is in there.
            outbox, self._outbox, self._in_transaction = self._outbox, None, False
            admin = self._clients.admin()
            self._patience.call(f"committing {self._what}", lambda left: admin.list_topics(timeout=left), admin)
            if not wait([done], _STUCK_SECONDS).done:
                raise FencedError(
                    f"{self._what}: its transaction in {self._clients.where} was given up (the group's coordinator has left the cluster): "
                    "nothing since the last commit counts; open it again"
                )
            self._outbox, self._in_transaction = outbox, True
        done.result()

    def _give_up(self, outbox: Outbox) -> None:
        if not self._in_transaction:
            return
        self._in_transaction = False
        try:
            outbox.producer.abort_transaction(2.0)
        except KafkaException:
            # The successor's opening aborts it, or the broker after `transaction.timeout.ms`.
            pass


class AtLeastOnce(KafkaCommitter):
    """Outputs flushed, then positions committed. No fence: a late zombie may take positions back, which repeats work."""

    def __init__(
        self,
        clients: Clients,
        application_id: str,
        task_id: str,
        partitions: Sequence[TopicPartition],
        count_partitions: Callable[[str], int],
    ) -> None:
        super().__init__(clients, application_id, task_id, partitions)
        self._consumer = clients.consumer(application_id)
        self._outbox = Outbox(clients, count_partitions)
        self._open()

    def _take_fence(self) -> None:
        pass

    def _begin(self) -> None:
        self._open_outbox()

    def _finish(self, offsets: list[KafkaPartition]) -> None:
        outbox, consumer = self._open_outbox(), self._consumer
        assert consumer is not None
        try:
            outbox.flush()
            found = self._patience.call(
                f"committing the positions of {self._what}",
                lambda seconds: consumer.commit(offsets=offsets, asynchronous=False),
                consumer,
            )
        except KafkaException as exception:
            raise self._failed(f"committing {self._what}", exception) from exception
        for each in found or []:
            if each.error is not None and each.error.code() in FOREIGN_MEMBERS:
                raise has_members(self._clients.where, self._application_id)
            if each.error is not None:
                raise LogError(
                    f"{self._clients.where}: committing {self._what}: {each.topic}-{each.partition}: {describe(each.error)}"
                )

    def _undo(self) -> None:
        if self._outbox is not None:
            self._outbox.producer.purge()
            try:
                self._outbox.producer.flush(1.0)
            except KafkaException:
                pass  # it is lost, and says so again when it is used
            self._outbox.failed = None

    def _give_up(self, outbox: Outbox) -> None:
        pass


def _commit(outbox: Outbox, seconds: float) -> None:
    try:
        outbox.producer.commit_transaction(seconds)
    except KafkaException:
        outbox.check_topics()
        raise


def transactional_id(application_id: str, task_id: str) -> str:
    """Return the one transactional id of a task."""
    return f"{application_id}-{task_id}"
