"""A task's committers, one for each guarantee. Both commit by a transaction; they differ in where outputs go."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from penstock import (
    Commit,
    FencedError,
    LogError,
    OutputBatch,
    PenstockError,
    ProductionError,
    RecordRefusedError,
    TaskCommitter,
    TopicPartition,
)

from ..messages import fenced
from .clients import Clients
from .copies import OffsetCopies, missing, with_copies
from .failures import describe, error_of, is_fenced
from .groups import RENEWAL_SECONDS
from .positions import from_kafka, may_have_copy, partition_of, plain, to_kafka
from .producing import Outbox
from .transactions import Transactions

_log = logging.getLogger("penstock.kafka")

_ABORT_SECONDS = 5.0
"""An abort that takes longer is left to the next committer: opening it aborts the transaction."""
_LAST_ABORT_SECONDS = 2.0


class KafkaCommitter(TaskCommitter):
    """One transaction a commit, under the task's transactional id. Opening fences, and aborts, a predecessor.

    `consumer` belongs to the application's group and reads its committed offsets; the tasks of a process share it.
    `renewal_seconds`: age at which a commit `expires` (`groups.renewal_seconds`). `copies`: the copies of the
    application's offsets; None for commits without offsets. `is_lasting`: each commit has copies.
    """

    streams_outputs = True
    open_files: ClassVar[int] = 8
    """File descriptors of an open committer with one broker: librdkafka's connections, and a pipe for each of its
    threads."""

    def __init__(
        self,
        clients: Clients,
        application_id: str,
        task_id: str,
        partitions: Sequence[TopicPartition],
        count_partitions: Callable[[str], int],
        consumer: Consumer,
        renewal_seconds: float = RENEWAL_SECONDS,
        copies: OffsetCopies | None = None,
        *,
        is_lasting: bool = False,
    ) -> None:
        self._clients = clients
        self._application_id = application_id
        self._task_id = task_id
        self._partitions = tuple(partitions)
        self._count_partitions = count_partitions
        self._consumer = consumer
        self._renewal_seconds = renewal_seconds
        self._copies = copies
        self._is_lasting = is_lasting
        self._copied: dict[TopicPartition, KafkaPartition] = {}
        """The copies of offsets that the next commit replaces."""
        self._is_copied = False
        """Whether the last commit has copies."""
        self._what = f"task {task_id} of application {application_id!r}"
        self._committed: Commit | None = None
        self._committed_at = 0.0
        self._was_fenced = False
        self._transactions: Transactions | None = Transactions(clients, count_partitions, application_id, task_id)
        self._open(self._transactions)

    @property
    def committed(self) -> Commit | None:
        return self._committed

    def is_current(self) -> bool:
        """Return whether the committed positions are still the ones of this object's last commit."""
        if self._transactions is None:
            return False
        return self._read() == self._committed

    @staticmethod
    def are_current(committers: Sequence[KafkaCommitter], most_seconds: float) -> list[bool]:
        """Return `is_current()` of each, by one request for the positions of all that have the same consumer.

        Raises KafkaException, also when a transaction with some of the positions does not end within `most_seconds`,
        and LogError as `is_current`.
        """
        found: dict[tuple[Consumer, TopicPartition], KafkaPartition] = {}
        by_consumer: dict[Consumer, set[TopicPartition]] = {}
        for committer in committers:
            if committer._transactions is not None:
                by_consumer.setdefault(committer._consumer, set()).update(committer._partitions)
        for consumer, partitions in by_consumer.items():
            for position in consumer.committed(plain(sorted(partitions)), timeout=most_seconds):
                found[consumer, TopicPartition(position.topic, position.partition)] = position
        return [
            committer._transactions is not None
            and committer._commit_in([found[committer._consumer, partition] for partition in committer._partitions])[0]
            == committer._committed
            for committer in committers
        ]

    def expires(self) -> bool:
        if self._committed is None:
            return False
        return (self._is_lasting and not self._is_copied) or time.time() >= self._committed_at + self._renewal_seconds

    def send(self, outputs: Sequence[OutputBatch]) -> None:
        try:
            self._produce(self._outbox(), outputs)
        except FencedError:
            self._give_way()
            raise
        except BaseException:
            self._undo()
            raise

    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        """Make outputs, positions and version visible, in one transaction."""
        offsets = to_kafka(self._task_id, commit, copied=self._is_lasting)
        replaced = [position for position in commit.positions if position in self._copied]
        if self._copies is not None and self._is_lasting:
            outputs = [*outputs, self._copies.batch(offsets)]
        elif self._copies is not None and replaced:
            outputs = [*outputs, self._copies.removal(replaced)]
        self.commit_offsets(offsets, outputs)
        self._committed = commit
        self._committed_at = time.time()
        self._is_copied = self._is_lasting
        for each in replaced:
            del self._copied[each]

    def commit_offsets(self, offsets: list[KafkaPartition], outputs: Sequence[OutputBatch]) -> None:
        """Make outputs and offsets visible, in one transaction."""
        try:
            self._deliver_sent()
            transactions = self._begun()
            self._produce(transactions, outputs)
            try:
                transactions.commit(offsets, self._consumer)
            except KafkaException as exception:
                raise self._failed(transactions, f"committing {self._what}", exception) from exception
            if self._committed is None:
                self._wait_until_listed()
        except ProductionError:
            self._undo()
            raise
        except FencedError:
            self._give_way()
            raise
        except BaseException:
            # The commit's outcome is unknown here; reopen and read it.
            self.close()
            raise

    def close(self) -> None:
        """Release everything; records that were sent and not committed are given up."""
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            # If this fails, the transaction is aborted when a successor opens the task, or after
            # `transaction.timeout.ms`.
            transactions.abort(_LAST_ABORT_SECONDS)
            transactions.close()

    # ------------------------------------------------------------------ for each guarantee

    @abstractmethod
    def _outbox(self) -> Outbox:
        """Return the outbox for outputs ahead of the commit."""

    @abstractmethod
    def _deliver_sent(self) -> None:
        """Wait until everything is delivered that must be durable before the transaction."""

    def _undo(self) -> None:
        """Give up the outputs sent since the last commit; if possible, leave the object ready for another try."""
        transactions = self._transactions
        if transactions is None:
            return
        was_refused = transactions.failed is not None
        is_aborted = transactions.abort(_ABORT_SECONDS)
        if is_aborted and not was_refused:
            return
        self._transactions = None
        transactions.close()
        if is_aborted:
            self._renew()

    def _renew(self) -> None:
        """Take the fence again with a new producer; stay closed if that fails, or if another process has committed.

        After a refused batch librdkafka leaves a gap in the sequence numbers, so the old producer's next transaction
        would fail as well.
        """
        self._transactions = Transactions(self._clients, self._count_partitions, self._application_id, self._task_id)
        try:
            self._transactions.take_fence()
            if self._read() == self._committed:
                return
        except (KafkaException, PenstockError) as error:
            _log.debug("%s: %s", self._what, error)
        self.close()

    # ------------------------------------------------------------------ inside

    def _open(self, transactions: Transactions) -> None:
        """Take the fence and read the last commit; close everything when that fails."""
        try:
            transactions.take_fence()
            found = self._positions()
            if self._copies is not None:
                self._copied, _ = self._copies.of([*missing(found), *map(partition_of, filter(may_have_copy, found))])
                self._is_copied = all(partition_of(each) in self._copied for each in found)
            self._committed, self._committed_at = self._commit_in(found)
        except KafkaException as exception:
            failed = self._failed(transactions, f"opening {self._what}", exception)
            self.close()
            raise failed from exception
        except BaseException:
            self.close()
            raise

    def _give_way(self) -> None:
        """Close, and never take the fence again: another process may have the task."""
        self._was_fenced = True
        self.close()

    def _opened(self) -> Transactions:
        if self._was_fenced:
            raise fenced(self._application_id, self._task_id)
        if self._transactions is None:
            raise LogError(
                f"{self._what}: this committer was closed, or the outcome of its last commit is unknown: open another "
                "and read `committed`"
            )
        return self._transactions

    def _begun(self) -> Transactions:
        transactions = self._opened()
        try:
            transactions.begin()
        except KafkaException as exception:
            raise self._failed(transactions, f"beginning a transaction of {self._what}", exception) from exception
        return transactions

    def _produce(self, outbox: Outbox, outputs: Sequence[OutputBatch]) -> None:
        try:
            for batch in outputs:
                outbox.send(batch)
        except RecordRefusedError:
            raise
        except ProductionError as exception:
            cause = exception.__cause__
            failed = self._judged(outbox, None if cause is None else error_of(cause))
            if failed is not None:
                raise failed from exception
            raise
        except KafkaException as exception:
            # Any call may report a fatal producer error.
            raise self._failed(outbox, f"producing for {self._what}", exception) from exception

    def _read(self) -> Commit | None:
        commit, self._committed_at = self._commit_in(self._positions())
        return commit

    def _positions(self) -> list[KafkaPartition]:
        if not self._partitions:
            return []
        try:
            return self._clients.patience.call(
                f"reading the positions of {self._what}",
                lambda seconds: self._consumer.committed(plain(self._partitions), timeout=seconds),
                self._consumer,
            )
        except LogError as late:
            raise self._clients.patience.out_of_time(
                late,
                self._consumer,
                f"a transaction with positions of {self._what} did not end",
                "If no other program commits positions of this group, the brokers have lost its end: find it with "
                "`kafka-transactions.sh find-hanging`, and end it with `kafka-transactions.sh abort`",
            ) from None

    def _wait_until_listed(self) -> None:
        """Wait until a task's first commit is readable, some milliseconds after the transaction's end.

        Until then, a list of the group's positions lacks it, even if the request waits for open transactions: it waits
        for transactions of listed positions only. A reset fences the tasks that it finds in that list.
        """
        try:
            self._read()
        except KafkaException as exception:
            raise self._failed(self._opened(), f"reading the first commit of {self._what}", exception) from exception

    def _commit_in(self, found: Sequence[KafkaPartition]) -> tuple[Commit | None, int]:
        """Return the commit in the task's positions, and when it was made. Raises KafkaException and LogError."""
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return from_kafka(self._task_id, with_copies(found, self._copied))

    def _failed(self, outbox: Outbox, doing: str, exception: KafkaException) -> PenstockError:
        """Return the error of penstock for an exception of Kafka's during a commit."""
        error = error_of(exception)
        if error is None:
            return LogError(f"{self._clients.where}: {doing}: {exception}")
        if is_fenced(error):
            return fenced(self._application_id, self._task_id)
        return self._judged(outbox, error) or LogError(
            f"{self._clients.where}: {doing}: {describe(error)}. Nothing since the last commit counts"
        )

    def _judged(self, outbox: Outbox, error: KafkaError | None) -> PenstockError | None:
        """Return the error for a refused record, or for a fatal error of the producer; None for neither."""
        failed = outbox.failed
        if failed is None and error is None:
            return None
        fatal = outbox.settle()
        if outbox.failed is not None and outbox.knows_refusal():
            # The refused record is the cause; the error of the transaction only follows from it.
            topic, delivery = outbox.failed
            return self._lost(delivery) if outbox.is_lost_by(delivery) else outbox.error(topic, delivery)
        error = fatal or error or (None if failed is None else failed[1])
        return self._lost(error) if error is not None and outbox.is_lost_by(error) else None

    def _lost(self, error: KafkaError) -> FencedError:
        if is_fenced(error) or error.code() == KafkaError._FATAL:
            return fenced(self._application_id, self._task_id)
        return FencedError(
            f"{self._what}: its transaction in {self._clients.where} was given up ({describe(error)}): "
            "nothing since the last commit counts; open it again"
        )


class ExactlyOnce(KafkaCommitter):
    """All outputs are in the transaction."""

    @property
    def commit_within(self) -> float:
        """Half the maximum duration of a transaction: producing the remaining outputs takes some of it."""
        return self._clients.transaction_seconds / 2

    def _outbox(self) -> Outbox:
        return self._begun()

    def _deliver_sent(self) -> None:
        pass  # the transaction's commit does


class AtLeastOnce(KafkaCommitter):
    """Outputs sent ahead go through a producer without transactions, and are delivered before the commit.

    Everybody reads them at once. The transaction has the rest: positions, version, the changelog's records. So
    positions and state never go back, and a process that was replaced can only still produce outputs.
    """

    open_files = 13
    _sent: Outbox | None = None

    def _open(self, transactions: Transactions) -> None:
        super()._open(transactions)
        # A producer needs half a second before its first record: it passes while other tasks are opened.
        self._outbox()

    def close(self) -> None:
        """Release everything; records that were sent and not delivered are given up."""
        super().close()
        self._drop_sent()

    def _outbox(self) -> Outbox:
        self._opened()
        if self._sent is None:
            self._sent = Outbox(self._clients, self._count_partitions)
        return self._sent

    def _deliver_sent(self) -> None:
        if self._sent is not None:
            try:
                self._sent.flush()
            except KafkaException as exception:
                raise self._failed(self._sent, f"producing for {self._what}", exception) from exception

    def _undo(self) -> None:
        super()._undo()
        # The next commit needs a new producer: this one may still report records that were given up.
        self._drop_sent()

    def _drop_sent(self) -> None:
        sent, self._sent = self._sent, None
        if sent is not None:
            sent.close()
