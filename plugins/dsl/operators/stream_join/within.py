"""JoinWindows: how far apart in time two records of a stream-stream join may be."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import Duration, TopologyError, duration_ms


@dataclass(frozen=True)
class JoinWindows:
    """A left record at time t joins right records from t - before to t + after, both ends included (ms).

    `grace_ms`: how long after a window has closed its records are still joined. `within` makes one.
    """

    before_ms: int
    after_ms: int
    grace_ms: int

    @property
    def size_ms(self) -> int:
        """The time between both ends of the window."""
        return self.before_ms + self.after_ms

    @property
    def retention_ms(self) -> int:
        """How long the stores of the join keep a record at least; more than `size_ms` if one end is negative."""
        return max(self.size_ms, self.before_ms, self.after_ms, 1 - self.grace_ms) + self.grace_ms

    @property
    def kept_ms(self) -> int:
        """How long they keep it if nothing else is said: a record at the earliest end is not yet gone."""
        return max(self.size_ms, self.before_ms + 1, self.after_ms + 1) + self.grace_ms


def within(
    difference: Duration | None = None,
    *,
    before: Duration | None = None,
    after: Duration | None = None,
    grace: Duration | None = None,
) -> JoinWindows:
    """Return the window of a stream-stream join: how far apart the two records may be.

    Write `within("10m", grace="1m")` for at most 10 minutes in either direction, or say both: `before` is how much
    earlier than the left record the right one may be, `after` how much later. One of them may be negative (write
    `"-5m"`), if their sum is not. `grace` is how long late records are waited for after a window has closed; it
    must be said, and "0s" is not at all.

    ::

        within(before="5m", after="1m", grace="0s")

        left                     L
        right    . . . [ a     b   c ] . . .      L joins a, b and c
                       |<- 5m ->|1m|

    Semantics: Kafka Streams' JoinWindows.

    >>> within("10m", grace="1m")
    JoinWindows(before_ms=600000, after_ms=600000, grace_ms=60000)
    >>> within(before="5m", after="0s", grace="1m").size_ms
    300000
    """
    if grace is None:
        raise TopologyError(
            'within: expected grace, how long late records are waited for; write within("10m", grace="1m"), or '
            'grace="0s" to wait for none'
        )
    if difference is not None and (before is not None or after is not None):
        raise TopologyError('within: write within("10m", grace=...) or within(before=..., after=..., grace=...)')
    if difference is None and (before is None or after is None):
        raise TopologyError('within: before and after are both said, for instance before="5m", after="0s"')
    if difference is not None:
        earlier = later = _ms(difference, "difference", may_be_negative=False)
    else:
        earlier, later = (_ms(each, name) for each, name in ((before, "before"), (after, "after")))
    if earlier + later < 0:
        raise TopologyError(f"within: before={before!r} and after={after!r} leave no time between them")
    return JoinWindows(earlier, later, _ms(grace, "grace", may_be_negative=False))


def _ms(duration: Duration | None, name: str, *, may_be_negative: bool = True) -> int:
    assert duration is not None
    what = f"within: {name}"
    if isinstance(duration, str) and duration.strip().startswith("-"):
        found = -duration_ms(duration.strip()[1:], what)
    else:
        found = duration_ms(duration, what, may_be_negative=True)
    if found < 0 and not may_be_negative:
        raise TopologyError(f"{what}={duration!r}: expected 0s or longer")
    return found
