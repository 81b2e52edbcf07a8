"""Which errors of librdkafka, and of brokers, a later try may help against."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from penstock.plugins.logs.kafka.failures import LOCAL_ERRORS, is_refused, is_retriable, is_unknown_topic


def known(codes: range) -> dict[int, str]:
    """Return the text of each error that the installed librdkafka has."""
    texts = {code: KafkaError(code).str() for code in codes}
    return {code: text for code, text in texts.items() if not text.startswith("Err-")}


def test_each_error_of_librdkafka_is_decided() -> None:
    """A release with another one has to be looked at: what is not decided ends a run."""
    local = known(range(-400, 0))
    assert len(local) > 60
    undecided = {code: text for code, text in local.items() if code not in LOCAL_ERRORS}
    assert not undecided, "decide them in LOCAL_ERRORS (plugins/logs/kafka/failures.py)"
    assert all(is_retriable(KafkaError(code)) == later for code, later in LOCAL_ERRORS.items())


def test_a_broker_that_left_is_waited_for() -> None:
    assert is_retriable(KafkaException(KafkaError(-137)))
    assert not is_retriable(KafkaException(KafkaError(-137, "of a transaction", txn_requires_abort=True)))


def test_no_error_has_two_meanings() -> None:
    for code in known(range(-400, 200)):
        error = KafkaError(code)
        assert is_retriable(error) + is_refused(error) + is_unknown_topic(error) <= 1, error
