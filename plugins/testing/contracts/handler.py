"""The tests that every error handler must pass; subclass `HandlerContract` to run them over yours."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from penstock import (
    Decision,
    Fail,
    Failure,
    Handler,
    Headers,
    PenstockError,
    RetryAfter,
    SendToDeadLetter,
    SerdeError,
    Skip,
    Stage,
    duration_ms,
)
from penstock.plugins.engine.task.shipping import Arrived, pack
from penstock.support.names import is_topic_name

from .surroundings import AGES_SECONDS, MONDAY_SECONDS, ZONES, MachineClock, in_other_surroundings, run_elsewhere

_OF_DEAD_LETTERS = "exception", "message", "stacktrace", "topic", "partition", "offset"
_MOST_ATTEMPTS = 10_000
_ATTEMPTS = (*range(1, 41), 100, 1_000)
_YEAR_2024_MS, _YEAR_9999_MS = MONDAY_SECONDS * 1000, 253_402_300_799_999
_CONTENTS = (
    b"null", b"true", b"0", b"-1.5", b"1e400", b'"text"', b"[]", b"[1, null]", b"[[1, 2], [3, 4]]", b"{}", b'{"a": 1}',
    b'{"a": null, "": [{}]}', b'{"a": ', b"\xef\xbb\xbf{}", b" ", b"7", b"a,b;c=d|e:f\n", b"<a/>",
    "\u00e9\u65e5\U0001f600".encode(), b"\xe9", "text".encode("utf-16"), b"\x00\x00\x00\x07",
    b"\x00\x00\x00\x00\x01\x02a", b"\x81\xa1a\xc0",
)  # fmt: skip
"""Keys and values as topics have them: JSON of each type, whole or cut off, text in any form, numbers, Avro with the id
of its schema, MessagePack."""
_HEADERS: tuple[Headers, ...] = tuple(
    tuple((f"__streams.errors.{name}", content) for name in _OF_DEAD_LETTERS)
    for content in (None, b"", b"\xff", b"3", b"text")
)
"""Headers of a record that was a dead letter before, and of one that another system has made like one."""


class HandlerContract:
    """The contract of a handler of failed records, as tests; run them in a test class of yours.

    >>> from penstock import DeadLetter
    >>> class TestDeadLetters(HandlerContract):
    ...     handler = DeadLetter("failed-orders")
    ...     topics = ("failed-orders",)

    Needs pytest (`pip install 'penstock-streams[testing]'`).
    """

    handler: Handler
    """The handler: an object, or a function as a `staticmethod`."""
    stages: ClassVar[Sequence[Stage]] = tuple(Stage)
    """What it decides about."""
    topics: ClassVar[Sequence[str]] = ()
    """The topics to which it sends dead letters."""
    errors: ClassVar[Sequence[Exception]] = (
        ValueError("invalid"), KeyError(), SerdeError("cannot read"), ZeroDivisionError("division by zero"),
        TimeoutError(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), ExceptionGroup("two", [ValueError()]),
    )  # fmt: skip
    """Errors with which records fail. Each is also tried without arguments, where its type allows that."""

    def test_each_failure_is_decided(self) -> None:
        """A handler decides about each failure and raises nothing: also without a record, and for tombstones."""
        for failure in self._failures():
            self._decision(self.made(), failure)

    def test_a_decision_depends_on_the_failure_alone(self) -> None:
        """A decision is the same after a retry, in another order, process, thread and time zone."""
        failures, handler = list(self._failures()), self.made()
        first = [self._decision(handler, failure) for failure in failures]
        for failure, expected in zip(reversed(failures), reversed(first), strict=True):
            again = self._decision(handler, failure)
            assert again == expected, f"asked again about {_short(failure)}, it decides {again!r} and not {expected!r}"
        try:
            sent = pickle.loads(pickle.dumps(type(self).handler))
        except Exception as error:
            raise AssertionError(f"a handler is sent to other processes, and cannot be pickled: {error!r}") from error
        for failure, expected in zip(failures, first, strict=True):
            again = sent(failure)
            assert again == expected, f"pickled, it decides {again!r} about {_short(failure)}, and not {expected!r}"
        clock = MachineClock(0)
        arrived = Arrived(pack(type(self).handler), is_apart=True)
        clock.show(arrived.made)

        def decide(ages: Sequence[int]) -> list[tuple[Failure, Decision, Decision]]:
            found = []
            for failure, expected in zip(failures, first, strict=True):
                clock.jump()
                found.append((failure, expected, self._decision(arrived.cargo, failure)))
                for age in ages if failure.timestamp == _YEAR_2024_MS else ():
                    clock.set(MONDAY_SECONDS + age)
                    found.append((failure, expected, self._decision(arrived.cargo, failure)))
            return found

        for number, zone in enumerate(ZONES):
            ages = AGES_SECONDS[number :: len(ZONES)]
            for failure, expected, again in in_other_surroundings(partial(decide, ages), zone):
                assert again == expected, (
                    f"in another thread, with the time zone TZ={zone} and at another time by the machine's clock, it "
                    f"decides {again!r} about {_short(failure)}, and not {expected!r}"
                )
        for seed in ("1", "2"):
            elsewhere = run_elsewhere(_decisions, (type(self).handler, failures), seed, "a handler")
            for failure, expected, again in zip(failures, first, elsewhere, strict=True):
                assert again == expected, (
                    f"in another process it decides {again!r} about {_short(failure)}, and not {expected!r}"
                )

    def test_it_gives_up(self) -> None:
        """A handler stops trying again at some attempt: a record that always fails must not stop a task."""
        for failure in self._failures():
            last = replace(failure, attempt=_MOST_ATTEMPTS)
            decision = self._decision(self.made(), last)
            assert not isinstance(decision, RetryAfter), (
                f"at attempt {_MOST_ATTEMPTS} of {_short(last)} it still decides {decision!r}: a task would never go on"
            )

    def test_it_changes_nothing(self) -> None:
        """The engine continues with the failure, and raises the error if it decides to fail."""
        for failure in self._failures():
            before = {name: deepcopy(value) for name, value in vars(failure).items() if name != "error"}
            self._decision(self.made(), failure)
            after = {name: value for name, value in vars(failure).items() if name != "error"}
            assert after == before, f"a handler must not change the failure: {before} became {after}"

    def made(self) -> Handler:
        """Return a copy of the handler, so that no test depends on another; the handler itself if it has no copy."""
        try:
            return deepcopy(type(self).handler)
        except Exception:
            return type(self).handler

    def _decision(self, handler: Handler, failure: Failure) -> Decision:
        arguments = failure.error.args
        try:
            decision: Any = handler(failure)
        except Exception as error:
            raise AssertionError(
                f"a handler must not raise: asked about {_short(failure)} it raised {error!r}"
            ) from error
        assert failure.error.args == arguments, (
            f"a handler must not change the error: {arguments} became {failure.error!r}"
        )
        where = f"asked about {_short(failure)} it returned {decision!r}"
        assert isinstance(decision, Fail | Skip | RetryAfter | SendToDeadLetter), (
            f"{where}, expected Fail(), Skip(), RetryAfter(...) or SendToDeadLetter(...)"
        )
        if isinstance(decision, RetryAfter):
            try:
                delay = duration_ms(decision.delay, "RetryAfter.delay")
            except PenstockError as error:
                raise AssertionError(f"{where}: {error}") from error
            assert 0 <= delay <= 3_600_000, f"{where}: the task waits that long; expected up to an hour"
        if isinstance(decision, SendToDeadLetter):
            assert isinstance(decision.topic, str) and is_topic_name(decision.topic), (
                f"{where}, which is no topic's name"
            )
            assert decision.topic in self.topics, f"{where}, and the suite's `topics` are {tuple(self.topics)}"
            assert decision.topic != failure.topic, f"{where}, the topic that it came from: it would fail there again"
        return decision

    def _failures(self) -> Iterator[Failure]:
        for stage in self.stages:
            for error in (*self.errors, *self._without_arguments()):
                for attempt in _ATTEMPTS:
                    first = Failure(
                        stage, error, "count", "0_3", "orders", 3, 7, b"key", b"value", (), _YEAR_2024_MS, attempt
                    )  # fmt: skip
                    yield first
                    if attempt not in (1, 2, 3, _ATTEMPTS[-1]):
                        continue
                    yield replace(first, raw_key=None, raw_value=None, headers=(("name", None),), timestamp=0)
                    yield replace(first, raw_key=b"\x00\xff", raw_value=b"\xff" * 10_000, headers=(("é", b"\xff"),) * 9)
                    yield replace(first, raw_key=b"", partition=0, offset=0, timestamp=_YEAR_9999_MS)
                    yield replace(first, raw_value=b"", timestamp=0)
                    yield replace(first, node="KSTREAM-MAP-0000000012", task_id="12_0", topic="shop-counts-repartition")
                    if attempt == 1:
                        for content in _CONTENTS:
                            yield replace(first, raw_key=content, raw_value=content)
                        for headers in _HEADERS:
                            yield replace(first, headers=headers)
                    if stage is not Stage.DESERIALIZATION:  # of a punctuator
                        yield Failure(stage, error, "count", "0_3", None, None, None, attempt=attempt)
                        of_join = Failure(stage, error, "join", "0_3", None, None, None, attempt=attempt)
                        yield replace(of_join, timestamp=1_700_000_000_000, had_waited=True)

    def _without_arguments(self) -> Iterator[Exception]:
        """Return an error without a message for each type that has arguments: `raise ValueError` is one."""
        for kind in dict.fromkeys(type(error) for error in self.errors if error.args):
            with suppress(TypeError):
                yield kind()


def _short(failure: Failure) -> str:
    value = failure.raw_value
    record = f"a record of {len(value)} bytes" if value and len(value) > 40 else f"a record with the value {value!r}"
    record = "a punctuator" if failure.topic is None else record
    return f"{failure.error!r} of {record} ({failure.stage.value}, attempt {failure.attempt})"


def _decisions(cargo: Any) -> list[Decision]:
    handler, failures = cargo
    return [handler(failure) for failure in reversed(failures)][::-1]
