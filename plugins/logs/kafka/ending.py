"""Ending producers: each is destroyed only when it is idle.

librdkafka corrupts memory when a producer is destroyed while a request has no answer yet, most often after a fatal
error, and sooner or later the process aborts (SIGABRT, SIGSEGV). Purging records in flight does not help: the request
is still there. So a daemon thread keeps a producer that is not idle until it is; the process can end meanwhile.
"""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Thread

from confluent_kafka import KafkaException, Producer

from .failures import error_of, fatal_errors_as_kafka_exceptions, is_retriable

_MOMENT = 0.5
_TRY_SECONDS = 10.0
_PAUSE_SECONDS = 0.2


def end(producer: Producer, *, is_committing: bool = False, is_aborting: bool = False) -> None:
    """Give up unsent records, and destroy the producer when it is idle. The caller keeps no reference to it.

    `is_committing`, `is_aborting`: a call to commit or abort a transaction has had no answer yet. It is repeated until
    the cluster answers, the producer is fenced, or another error ends the transaction.
    """
    producer.purge(in_flight=False)
    if is_committing or is_aborting or not _is_empty(producer, _MOMENT):
        Thread(
            target=_wait_until_idle, args=(producer, is_committing, is_aborting), name="penstock-producer", daemon=True
        ).start()


def _wait_until_idle(producer: Producer, is_committing: bool, is_aborting: bool) -> None:
    while is_committing or is_aborting:
        try:
            with fatal_errors_as_kafka_exceptions():
                if is_committing:
                    producer.commit_transaction(_TRY_SECONDS)
                else:
                    producer.abort_transaction(_TRY_SECONDS)
            break
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and error.txn_requires_abort() and not error.fatal():
                is_committing, is_aborting = False, True
            elif error is None or not is_retriable(error):
                break
        time.sleep(_PAUSE_SECONDS)
    # Records in flight fail at the latest after the transaction's, or the message's, time limit.
    while not _is_empty(producer, _TRY_SECONDS):
        pass


def _is_empty(producer: Producer, seconds: float) -> bool:
    """Return whether every record has been delivered, or has failed, within a time."""
    deadline = time.monotonic() + seconds
    while len(producer):
        if time.monotonic() > deadline:
            return False
        # After a fatal error, requests in flight are answered all the same.
        with suppress(KafkaException, SystemError):
            producer.poll(0.02)
    return True
