"""Handlers with one wrong line each, which `HandlerContract` has to find."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock import Fail, Failure, RetryAfter, SendToDeadLetter, SerdeError, Skip


@dataclass
class Right:
    """Retries time-outs, sends what cannot be read away, skips what divides by zero, and fails otherwise."""

    def __call__(self, failure: Failure) -> Any:
        if isinstance(failure.error, TimeoutError) and failure.attempt <= self.attempts(failure):
            return RetryAfter(self.delay(failure))
        if isinstance(failure.error, SerdeError):
            return SendToDeadLetter(self.topic(failure))
        return Skip() if isinstance(failure.error, ZeroDivisionError) else Fail()

    def attempts(self, failure: Failure) -> int:
        return 3

    def delay(self, failure: Failure) -> Any:
        return "1s"

    def topic(self, failure: Failure) -> str:
        return "failed"


class NeedsARecord(Right):
    def __call__(self, failure: Failure) -> Any:
        return Skip() if failure.raw_value.startswith(b"{") else super().__call__(failure)  # type: ignore[union-attr]


class NeedsAMessage(Right):
    def __call__(self, failure: Failure) -> Any:
        return Skip() if "ignore" in failure.error.args[0] else super().__call__(failure)


class NeedsAMessageOfItsType(Right):
    def __call__(self, failure: Failure) -> Any:
        is_ours = isinstance(failure.error, ValueError) and "ignore" in str(failure.error.args[0])
        return Skip() if is_ours else super().__call__(failure)


class NeedsText(Right):
    def __call__(self, failure: Failure) -> Any:
        return Skip() if failure.raw_value and failure.raw_value.decode() == "-" else super().__call__(failure)


class NeedsAnObject(Right):
    """JSON that is null, a number or a list is as whole."""

    def __call__(self, failure: Failure) -> Any:
        try:
            value = json.loads(failure.raw_value or b"{}")
        except ValueError:
            return super().__call__(failure)
        return Skip() if value.get("optional") else super().__call__(failure)


class CountsInHeaders(Right):
    """Every record that was a dead letter before has the header, and not every system writes a number there."""

    def attempts(self, failure: Failure) -> int:
        return int(dict(failure.headers).get("__streams.errors.offset") or b"3")


class ReturnsNothing(Right):
    def __call__(self, failure: Failure) -> Any:
        return None if isinstance(failure.error, ZeroDivisionError) else super().__call__(failure)


class ReturnsAClass(Right):
    def __call__(self, failure: Failure) -> Any:
        return Skip if isinstance(failure.error, ZeroDivisionError) else super().__call__(failure)


class TriesForEver(Right):
    def attempts(self, failure: Failure) -> int:
        return failure.attempt


@dataclass
class CountsItself(Right):
    seen: dict[str, int] = field(default_factory=dict)

    def __call__(self, failure: Failure) -> Any:
        if not isinstance(failure.error, TimeoutError):
            return super().__call__(failure)
        self.seen[failure.task_id] = self.seen.get(failure.task_id, 0) + 1
        return RetryAfter("1s") if self.seen[failure.task_id] <= 3 else Fail()


class DelaysBySeconds(Right):
    def delay(self, failure: Failure) -> Any:
        return failure.attempt


class DelaysTwiceAsLong(Right):
    """Without a limit: at attempt 100 the sun is gone."""

    def attempts(self, failure: Failure) -> int:
        return 100

    def delay(self, failure: Failure) -> Any:
        return f"{2 ** min(failure.attempt, 40)}s"


class NamesATopicByTheError(Right):
    def topic(self, failure: Failure) -> str:
        return f"failed {type(failure.error).__name__}"


class SendsBack(Right):
    def topic(self, failure: Failure) -> str:
        return failure.topic or "failed"


class TopicByHash(Right):
    def topic(self, failure: Failure) -> str:
        return f"failed-{hash(failure.node) % 5}"


class ChangesTheError(Right):
    def __call__(self, failure: Failure) -> Any:
        decision = super().__call__(failure)
        failure.error.args = (f"{failure.node}: {failure.error}",)
        return decision


class TriesLongerAndLonger(Right):
    """Up to attempt 20, when it would wait for 12 days."""

    def attempts(self, failure: Failure) -> int:
        return 20

    def delay(self, failure: Failure) -> Any:
        return f"{2**failure.attempt}s"


class TriesLessAtNight(Right):
    def attempts(self, failure: Failure) -> int:
        return 3 if datetime.now().hour > 5 else 2


class TriesByTheClock(Right):
    def attempts(self, failure: Failure) -> int:
        return 3 if time.time() % 86_400 > 3_600 else 2


class LessForOldRecords(Right):
    """A record that is older than a day by the machine's clock is not tried again."""

    def attempts(self, failure: Failure) -> int:
        return 0 if failure.timestamp < time.time() * 1000 - 86_400_000 else 3


class MoreForAMinute(Right):
    """A record is tried more often while it is younger than a minute."""

    def attempts(self, failure: Failure) -> int:
        return 4 if time.time_ns() // 1_000_000 - failure.timestamp < 60_000 else 3


class SkipsTheFuture(Right):
    """A record that is ahead of the machine's clock is not tried again."""

    def attempts(self, failure: Failure) -> int:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=failure.timestamp)
        return 0 if at > datetime.now(UTC) else 3


class SkipsTheFutureByAnHour(Right):
    """The same, where an hour is allowed and records of 1970 are none of today."""

    def attempts(self, failure: Failure) -> int:
        return 0 if 0 < failure.timestamp / 1000 - time.time() - 1_000 < 31_536_000 else 3


class OlderThanThirtyDays(Right):
    def attempts(self, failure: Failure) -> int:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=failure.timestamp)
        return 3 if at.year < 2000 or datetime.now(UTC) - at < timedelta(days=30) else 2


@dataclass
class MoreAtFirst(Right):
    """For an hour after it was made, as a process sees it."""

    since: float = field(default_factory=time.monotonic)

    def attempts(self, failure: Failure) -> int:
        return 5 if time.monotonic() - self.since < 3_600 else 3


class KeyWithContent(Right):
    def __call__(self, failure: Failure) -> Any:
        return Skip() if failure.raw_key is not None and failure.raw_key[0] == 1 else super().__call__(failure)


class EndsBeforeTheYear10000(Right):
    def __call__(self, failure: Failure) -> Any:
        day = datetime.fromtimestamp(failure.timestamp / 1000, UTC) + timedelta(days=1)
        return super().__call__(failure) if day else Skip()


class KnowsItsNodeOnly(Right):
    def attempts(self, failure: Failure) -> int:
        return {"count": 3}[failure.node]


@dataclass
class HasALock(Right):
    lock: Any = field(default_factory=threading.Lock)
