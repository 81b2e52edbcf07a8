"""JoinWindows: how far apart in time two records of a stream-stream join may be; JoinStore keeps them so long."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from penstock import Duration, Serde, StoreSpec, TopologyError, WindowStoreSpec, duration_ms, list_store, window_store
from penstock.program.serdes import resolve_serde
from penstock.store.division import Division

from ..graph.materialized import has_headers, kept_options
from ..graph.options import StreamJoinOptions
from ..graph.serdes import Serdes, key_of_store, value_of_store
from ..graph.step import Writer
from ..missing_verbs import WindowsType
from .waiting import SideSerde, ValueAndHeadersSerde, WaitingKeySerde


@dataclass(frozen=True)
class JoinWindows(metaclass=WindowsType):
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


@dataclass(frozen=True)
class JoinStore:
    """The store with the records of one side. `given` is the declared one, if there is one."""

    name: str
    given: WindowStoreSpec | None
    serdes: Serdes
    windows: JoinWindows
    retention_ms: int
    chosen: dict[str, Any]

    def declared(self, writer: Writer) -> WindowStoreSpec:
        """Return the declared store, once the settings are known."""
        key, value = key_of_store(self.serdes.key, writer.settings), value_of_store(self.serdes.value, writer.settings)
        if self.given is not None:
            kept = max(self.given.retention_ms, self.windows.kept_ms)
            return dataclasses.replace(self.given, key_serde=key, value_serde=value, cached=False, retention_ms=kept)
        return window_store(
            self.name,
            retention=f"{self.retention_ms}ms",
            window_size=f"{max(self.windows.size_ms, 1)}ms",
            key_serde=key,
            value_serde=value,
            retain_duplicates=True,
            **self.chosen,
        )

    def shared_options(self) -> dict[str, Any]:
        """Return the options that the store of waiting records shares with this one."""
        return self.chosen if self.given is None else kept_options(vars(self.given))


def join_store(
    verb: str, option: str, name: str, serdes: Serdes, windows: JoinWindows, options: StreamJoinOptions
) -> JoinStore:
    """Return the store of one side: the one declared as `option`, or one named `name`. Raises TopologyError."""
    given: Any = options.get(option)
    if given is None:
        return JoinStore(name, None, serdes, windows, _retention(verb, windows, options), kept_options(options))
    example = f'window_store("NAME", retention="{windows.retention_ms}ms", ..., retain_duplicates=True)'
    if not isinstance(given, WindowStoreSpec) or not given.retain_duplicates:
        raise TopologyError(
            f"{verb}: {option} is a window store that retains duplicates, found {given!r}; write {example}"
        )
    if given.headers or given.timestamped:
        raise TopologyError(f"{verb}: {option} {given.name!r} keeps plain values; leave out timestamped= and headers=")
    if given.retention_ms < windows.retention_ms:
        raise TopologyError(
            f"{verb}: {option} {given.name!r} keeps records for {given.retention_ms} ms, and the window with its grace "
            f"takes {windows.retention_ms} ms; write {example}"
        )
    known = serdes.given(given.key_serde, given.value_serde)
    return JoinStore(given.name, given, known, windows, given.retention_ms, {})


def waiting_store(name: str, left: JoinStore, right: JoinStore) -> Callable[[Writer], StoreSpec]:
    """Return a function that declares the store of records without a match yet, of both sides in the order of time."""

    def declared(writer: Writer) -> StoreSpec:
        state, what = writer.settings.state_serde, f"store {name!r}"
        specs = left.declared(writer), right.declared(writer)
        values: list[Serde[Any]] = [resolve_serde(each.value_serde, state, what) for each in specs]
        if has_headers(writer):
            values = [ValueAndHeadersSerde(each) for each in values]
        made = list_store(
            name,
            key_serde=WaitingKeySerde(resolve_serde(specs[0].key_serde, state, what)),
            value_serde=SideSerde(*values),
            **left.shared_options(),
        )
        return dataclasses.replace(made, division=Division(record_key=itemgetter(2)))

    return declared


def _retention(verb: str, windows: JoinWindows, options: StreamJoinOptions) -> int:
    if "retention" not in options:
        return windows.kept_ms
    kept = duration_ms(options["retention"], f"{verb}: retention")
    if kept < windows.retention_ms:
        raise TopologyError(
            f"{verb}: retention is {kept} ms, and its records are joined for up to {windows.retention_ms} ms"
        )
    return max(kept, windows.kept_ms)  # with the window and its grace alone, a pair at the earliest end is lost
