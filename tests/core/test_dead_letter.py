"""The headers of a dead letter: what they say, how they are found again, and that they stay small."""

from __future__ import annotations

import pytest

from penstock import DeadLetter, Failure, Handler, Retry, Stage, fail, skip
from penstock.record import Headers
from penstock.settings.dead_letters import dead_letter_topics
from penstock.task.dead_letter import FailureNote, letter_headers, split_headers


def failure(
    error: Exception, headers: Headers = (), value: bytes | None = b"v", topic: str | None = "orders"
) -> Failure:
    partition, offset = (1, 1042) if topic is not None else (None, None)
    return Failure(Stage.PROCESSING, error, "charge", "0_1", topic, partition, offset, b"k", value, headers, 7)


def raised(depth: int, message: str) -> ValueError:
    def descend(left: int) -> None:
        if left:
            # Lines that differ are not folded by Python.
            exec(
                compile(f"{chr(10) * left}descend(left - 1)", f"file-{left}", "exec"),
                {"descend": descend, "left": left},
            )
        else:
            raise ValueError(message)

    with pytest.raises(ValueError) as caught:
        descend(depth)
    return caught.value


def test_they_are_named_as_kafka_streams_names_them() -> None:
    headers = letter_headers(failure(raised(0, "no \udce4 and ä")))
    assert [name for name, _ in headers] == [
        f"__streams.errors.{name}" for name in ("exception", "message", "stacktrace", "topic", "partition", "offset")
    ]
    original, note = split_headers((("a", b"1"), *headers, ("b", None)))
    assert original == (("a", b"1"), ("b", None))
    assert note is not None and note.stacktrace is not None
    assert note.stacktrace.startswith("Traceback") and note.stacktrace.endswith("ValueError: no ? and ä\n")
    assert note == FailureNote("builtins.ValueError", "no ? and ä", note.stacktrace, "orders", 1, 1042)


def test_a_failure_in_a_punctuator_has_no_source() -> None:
    _, note = split_headers(letter_headers(failure(ValueError("no"), topic=None)))
    assert note is not None
    assert (note.topic, note.partition, note.offset) == (None, None, None)


def test_the_last_failure_alone_is_described() -> None:
    first = letter_headers(failure(ValueError("first"), (("a", b"1"),)))
    second = letter_headers(failure(KeyError("second"), first, topic="others"))
    assert [name for name, _ in second] == [name for name, _ in first]
    original, note = split_headers(second)
    assert original == (("a", b"1"),)
    assert note is not None and (note.exception, note.topic) == ("builtins.KeyError", "others")
    # As an earlier version wrote them.
    original, note = split_headers((*first, *second[1:]))
    assert original == (("a", b"1"),)
    assert note is not None and note.message == "'second'"


def test_headers_that_only_look_like_those_of_a_letter_are_the_records() -> None:
    assert split_headers((("a", b"1"), ("topic", b"t"), ("__streams.errors.other", b""))) == (
        (("a", b"1"), ("topic", b"t"), ("__streams.errors.other", b"")),
        None,
    )


@pytest.mark.parametrize("size", [10, 1_040_000])
def test_a_record_that_could_be_read_can_be_produced(size: int) -> None:
    error = raised(200, "ä" * 100_000)
    headers = letter_headers(failure(error, value=b"x" * size))
    total = size + sum(len(name) + len(value or b"") for name, value in headers)
    assert total < max(12_000, 1_048_576)
    note = split_headers(headers)[1]
    assert note is not None and note.stacktrace is not None and note.message is not None
    assert note.stacktrace.startswith("Traceback") and "bytes left out" in note.stacktrace
    assert (
        note.stacktrace.endswith("ä\n")
        and note.message.endswith("ä")
        and "\ufffd" not in note.message + note.stacktrace
    )


def test_topics_are_found_behind_retries() -> None:
    handlers: list[Handler] = [
        fail,
        DeadLetter("a"),
        Retry(then=Retry(then=DeadLetter("b"))),
        Retry(then=skip),
        DeadLetter("a"),
    ]
    assert dead_letter_topics(handlers) == ("a", "b")
