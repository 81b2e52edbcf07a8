"""A program of the DSL that is killed: joins, windows, sessions and suppressed updates, for `dsl_oracle` to judge.

Clicks and views have a serial in their value and in a header, which shows in every result what it is made of.
"""

from __future__ import annotations

import random
from typing import Any

from penstock.plugins.dsl import StreamsBuilder, sessions, tumbling, within
from penstock.record import OutputBatch

CLICKS, VIEWS, USERS, REGIONS = "clicks", "views", "users", "regions"
PLACED, READ, COUNTS, FINAL, LATE = "placed", "read", "counts", "final", "late"
SESSIONS, LATE_CLICKS, PAIRS, PROFILES = "sessions", "late-clicks", "pairs", "profiles"
INPUTS = {CLICKS: 3, USERS: 3, VIEWS: 3, REGIONS: 2}
OUTPUTS = {
    PLACED: 3, READ: 2, COUNTS: 2, FINAL: 2, LATE: 2, SESSIONS: 3, LATE_CLICKS: 3, PAIRS: 3, PROFILES: 3,
}  # fmt: skip
BY_REGION = "crash-by-region-repartition"
ASKED, ANSWERED = "crash-profile-subscription-registration-topic", "crash-profile-subscription-response-topic"
INTERNAL = {BY_REGION: 2, ASKED: 2, ANSWERED: 3}

WINDOW_MS, WINDOW_GRACE_MS = 2_000, 1_000
GAP_MS, SESSION_GRACE_MS = 2_000, 1_000
NEAR_MS, JOIN_GRACE_MS = 2_000, 5_000
JITTER_MS = 300
STEP_MS = 20
START = 1_000_000
USER_COUNT, REGION_COUNT = 200, 7
PUSH_MS = 30_000
"""How far a push moves time, so that all that waits for time comes out."""
BACKLOG_ROWS = 1_000
WAITED = "w"
"""What the serial of a click begins with that is there at a start, with the row of its user before it."""
SETTINGS = {"dsl_store_format": "headers"}


def serial_of(value: str) -> str:
    """Return the serial of a click, or of what was made of one."""
    return value.partition(" ")[0]


def _together(one: str, other: str) -> str:
    return f"{one} {other}" if one and other else one or other


def make_builder() -> StreamsBuilder:
    """Return the program: a join into a repartition topic with cached counts of windows behind it, which are also
    suppressed; sessions that close when they are idle; an outer join of streams; a join of tables by foreign key."""
    builder = StreamsBuilder()
    clicks, views = builder.stream(CLICKS), builder.stream(VIEWS)
    users, regions = builder.table(USERS, "users"), builder.table(REGIONS, "regions")

    placed = clicks.left_join(users, lambda click, user: f"{click} {user or '0 nowhere'}")
    placed = placed.map_values_batch(list, name="placed-in-batches")
    placed.to(PLACED)
    by_region = placed.select_key(lambda value: value.split(" ")[2]).repartition("by-region", partitions=2)
    by_region.to(READ)
    windows = tumbling(f"{WINDOW_MS}ms", grace=f"{WINDOW_GRACE_MS}ms")
    counts = by_region.group_by_key(value_serde="str").windowed_by(windows, late=LATE).count("counts")
    for table, topic in ((counts, COUNTS), (counts.suppress("window_closes", name="closing"), FINAL)):
        table.to_stream().map(lambda key, count: (key.key, f"{key.start} {count}"), with_key=True).to(
            topic, key_serde="str", value_serde="str"
        )

    by_session = sessions(gap=f"{GAP_MS}ms", grace=f"{SESSION_GRACE_MS}ms")
    visits = clicks.group_by_key().windowed_by(by_session, emit="on_close", idle="2s", late=LATE_CLICKS)
    visited = visits.aggregate(str, lambda visit, click: _together(visit, serial_of(click)), _together, "visits")
    visited.to_stream().map(lambda key, visit: (key.key, f"{key.start} {key.end} {visit}"), with_key=True).to(
        SESSIONS, key_serde="str", value_serde="str"
    )

    pairs = clicks.outer_join(
        views,
        lambda click, view: f"{serial_of(click) if click else '-'} {view or '-'}",
        within(f"{NEAR_MS}ms", grace=f"{JOIN_GRACE_MS}ms"),
        name="pairs",
    )
    pairs.to(PAIRS, value_serde="str")

    profiles = users.join(
        regions,
        lambda user, region: f"{user} {region}",
        foreign_key=lambda user: user.split(" ")[1],
        name="profile",
    )
    profiles.to_stream().to(PROFILES, value_serde="str")
    return builder


class Input:
    """Makes input. Timestamps go on by STEP_MS from click to click, each up to JITTER_MS earlier."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now = START
        self._serial = 0
        self._has_regions = False

    def batches(self, count: int) -> list[OutputBatch]:
        """Return so many clicks, and some of all else."""
        begin = self._now
        self._now += count * STEP_MS
        clicks = [self._now - (count - 1 - number) * STEP_MS for number in range(count)]
        views = [self._random.randrange(begin, self._now) for _ in range(count // 4)]
        batches = [self._named(CLICKS, "c", clicks), self._named(VIEWS, "v", views)]
        batches.append(self._table(USERS, [self._user() for _ in range(count // 4)], regions=True))
        if not self._has_regions:
            self._has_regions = True
            batches.append(self._table(REGIONS, [f"region-{number}" for number in range(REGION_COUNT - 1)]))
        elif self._random.random() < 0.1:
            batches.append(self._table(REGIONS, [self._region()]))
        return batches

    def backlog(self) -> list[OutputBatch]:
        """Return rows for each user, and then a click of each, which is later by its timestamp.

        One user has so many rows that the clicks of its partition come before the last row, unless a task waits.
        """
        users = [f"user-{number}" for number in range(USER_COUNT)]
        self._now += STEP_MS
        rows = self._table(USERS, [users[0]] * BACKLOG_ROWS + users, regions=True)
        self._now += STEP_MS
        clicks = self._named(CLICKS, WAITED, [self._now] * USER_COUNT, jitter=0, users=users)
        self._now += STEP_MS
        return [rows, clicks]

    def push(self) -> list[OutputBatch]:
        """Return some clicks that are much later than all before."""
        self._now += PUSH_MS
        return [self._named(CLICKS, "c", [self._now] * 24, jitter=0)]

    def _named(
        self, topic: str, letter: str, times: list[int], jitter: int = JITTER_MS, users: list[str] | None = None
    ) -> OutputBatch:
        names = []
        for _ in times:
            self._serial += 1
            names.append(f"{letter}{self._serial}")
        return OutputBatch(
            topic,
            [each.encode() for each in users or [self._user() for _ in names]],
            [name.encode() for name in names],
            [time - (self._random.randrange(jitter) if jitter else 0) for time in times],
            [(("serial", name.encode()),) for name in names],
        )

    def _table(self, topic: str, keys: list[str], *, regions: bool = False) -> OutputBatch:
        values = []
        for _ in keys:
            self._serial += 1
            values.append(f"{self._serial} {self._region()}" if regions else str(self._serial))
        return OutputBatch(
            topic, [key.encode() for key in keys], [value.encode() for value in values], [self._now] * len(keys)
        )

    def _user(self) -> str:
        return f"user-{self._random.randrange(USER_COUNT)}"

    def _region(self) -> str:
        return f"region-{self._random.randrange(REGION_COUNT)}"


def entries(name: str, store: Any, task_id: str) -> dict[str, Any]:
    """Return what a store has that the oracle looks at."""
    if name in ("users", "regions"):
        with store.all() as found:
            return {key: entry.value for key, entry in found}
    if name == "counts":
        with store.all() as found:
            return {f"{key.key} {key.start}": entry.value for key, entry in found}
    if name == "closing-store":
        with store.all() as found:
            return {raw.hex(): 1 for raw, _ in found}
    return {}
