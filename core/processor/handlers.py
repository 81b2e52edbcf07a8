"""Error handlers: decisions about records that cannot be read, processed or produced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ..clock import Duration, duration_ms
from ..errors import ConfigError
from ..record import Headers
from ..support.names import is_topic_name


class Stage(Enum):
    """Where a record failed."""

    DESERIALIZATION = "deserialization"
    PROCESSING = "processing"
    PRODUCTION = "production"


@dataclass(frozen=True)
class Failure:
    """The error, and the record that failed.

    `raw_key`, `raw_value` and `headers` are the source record's; inside a punctuator there is none, and they, `topic`,
    `partition` and `offset` are None. So they are for a record that a join had kept back (`had_waited`): where it was
    read is not known any more, and `timestamp` is its own. Of an update that a record cache held back it is the last
    one that made it. `attempt` counts from 1.
    """

    stage: Stage
    error: Exception
    node: str
    task_id: str
    topic: str | None
    partition: int | None
    offset: int | None
    raw_key: bytes | None = None
    raw_value: bytes | None = None
    headers: Headers = ()
    timestamp: int = -1
    attempt: int = 1
    had_waited: bool = False


@dataclass(frozen=True)
class Fail:
    """Stop the task; nothing since its last commit counts."""


@dataclass(frozen=True)
class Skip:
    """Drop the record at this node, counted; what other nodes did with it stays."""


@dataclass(frozen=True)
class RetryAfter:
    """Go back to the task's last commit, wait, and process again from there."""

    delay: Duration


@dataclass(frozen=True)
class SendToDeadLetter:
    """Drop the record at this node and send the source record, as it was read, to a topic in the same commit."""

    topic: str


Decision = Fail | Skip | RetryAfter | SendToDeadLetter
Handler = Callable[[Failure], Decision]
"""Decides what happens to a failed record. Called in the task; must not raise."""


def fail(failure: Failure) -> Decision:
    """Stop the task: the default for all three stages."""
    return Fail()


def skip(failure: Failure) -> Decision:
    """Log, count and drop the record (Kafka Streams: LogAndContinue)."""
    return Skip()


@dataclass(frozen=True)
class DeadLetter:
    """A handler that sends failed records to a dead-letter topic, which the application itself must not read.

    The headers of a dead letter are those of KIP-1034: `__streams.errors.exception`, `.message`, `.stacktrace`,
    `.topic`, `.partition` and `.offset`.
    """

    topic: str

    def __post_init__(self) -> None:
        if not is_topic_name(self.topic):
            raise ConfigError(f"DeadLetter: expected the name of a topic, found {self.topic!r}")

    def __call__(self, failure: Failure) -> Decision:
        """Decide."""
        return SendToDeadLetter(self.topic)


@dataclass(frozen=True)
class Retry:
    """A handler that tries again `attempts` times, `delay` apart, and then asks the handler `then`."""

    attempts: int = 3
    delay: Duration = "1s"
    then: Handler = fail

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 0:
            raise ConfigError(f"Retry: attempts: expected a number of attempts, found {self.attempts!r}")
        duration_ms(self.delay, "Retry: delay")
        if not callable(self.then):
            raise ConfigError(
                f"Retry: then: expected a handler, found {self.then!r}; for a topic of dead letters, write "
                f"DeadLetter({self.then!r})"
            )

    def __call__(self, failure: Failure) -> Decision:
        """Decide."""
        return RetryAfter(self.delay) if failure.attempt <= self.attempts else self.then(failure)


def needs_no_record(handler: Handler) -> bool:
    """Return whether a handler is known to decide without the record's content."""
    while isinstance(handler, Retry):
        handler = handler.then
    return handler is fail or handler is skip
