"""What the outputs and stores of `dsl_app` must be, in plain Python, from the inputs as they are in the topics."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .dsl_app import (
    CLICKS,
    COUNTS,
    FINAL,
    GAP_MS,
    JOIN_GRACE_MS,
    LATE,
    LATE_CLICKS,
    NEAR_MS,
    PAIRS,
    PLACED,
    PROFILES,
    READ,
    REGIONS,
    SESSIONS,
    USERS,
    VIEWS,
    WAITED,
    WINDOW_GRACE_MS,
    WINDOW_MS,
    serial_of,
)  # fmt: skip
from .oracle import Row, Stores, Verdict


class Update(NamedTuple):
    """A window's count after one record, with what the result of this record has."""

    number: int
    timestamp: int
    serial: str


class DslOracle:
    """Judges outputs and stores, exactly once: each row that must be there is there once, and no other is."""

    def __init__(self, inputs: Iterable[Row], outputs: Iterable[Row]) -> None:
        self._rows: dict[str, list[Row]] = defaultdict(list)
        for row in (*inputs, *outputs):
            self._rows[row.topic].append(row)
        self._clicks = {serial_of(row.value): row for row in self._rows[CLICKS]}
        self._verdict = Verdict()

    def judge(self, stores: Mapping[str, Stores] | None = None) -> Verdict:
        """Return what is wrong with the outputs, and with the stores of each place: of a host, or as restored."""
        self._verdict = Verdict()
        self._judge_placed()
        self._judge_read()
        self._judge_windows()
        self._judge_sessions()
        self._judge_pairs()
        self._judge_profiles()
        for place, found in (stores or {}).items():
            self._judge_stores(place, found)
        return self._verdict

    @property
    def awaits_time(self) -> bool:
        """Whether results wait for records that move time on: clicks and views without a pair."""
        return bool(self._missing_pairs())

    @property
    def awaits_rest(self) -> bool:
        """Whether results wait for a time without records: sessions."""
        return bool(self._clicks.keys() - self._in_sessions().keys())

    # ------------------------------------------------------------------ the join into the repartition topic

    def _judge_placed(self) -> None:
        """Each click once, in its partition's order, with a version of its user, and none after a later one.

        A click that was there at a start, as the row of its user was, has just the version of its time.
        """
        versions: dict[str, dict[str, int]] = defaultdict(lambda: {"0 nowhere": 0})
        of_user: dict[str, list[Row]] = defaultdict(list)
        for row in self._rows[USERS]:
            versions[row.key][row.value] = int(serial_of(row.value))
            of_user[row.key].append(row)
        last: dict[str, int] = defaultdict(int)
        for row in self._rows[PLACED]:
            click, user = self._clicks.get(serial_of(row.value)), row.value.partition(" ")[2]
            if click is None or not _same(row, click) or user not in versions[row.key]:
                self._wrong(f"{row} is made of no click and row of its user")
            elif versions[row.key][user] < last[row.key]:
                self._wrong(f"{row}: the table went back from version {last[row.key]}")
            elif click.value.startswith(WAITED) and user != (due := _at(of_user[row.key], click.timestamp)):
                self._wrong(f"{row} did not wait for the row of its user, or comes after a later one: expected {due}")
            else:
                last[row.key] = versions[row.key][user]
        self._same_order("placed", self._rows[CLICKS], self._rows[PLACED])

    def _judge_read(self) -> None:
        """What came out of the repartition topic is what went in, in the order of each task that wrote it."""
        placed = {serial_of(row.value): row for row in self._rows[PLACED]}
        self._once("read", [serial_of(row.value) for row in self._rows[READ]], placed)
        orders: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in self._rows[READ]:
            before = placed.get(serial_of(row.value))
            if before is None or not _same(row, before, before.value.split(" ")[2]) or row.value != before.value:
                self._wrong(f"{row} is nothing that was placed")
            else:
                orders[row.partition, before.partition].append(before.offset)
        for (partition, _), offsets in orders.items():
            if offsets != sorted(offsets):
                self._wrong(f"partition {partition} of the repartition topic was not read in the order of its writer")

    # ------------------------------------------------------------------ windows

    def _judge_windows(self) -> None:
        """Counts are the updates of their window, the last one included; each closed window came once, as it was."""
        for partition in {row.partition for row in self._rows[READ]}:
            updates, late, time = self._windows(partition)
            self._same(
                "late records", [_facts(row) for row in self._in(LATE, partition)], [_facts(row) for row in late]
            )
            seen: dict[tuple[str, int], int] = defaultdict(int)
            for row in self._in(COUNTS, partition):
                window, count = _window(row), int(row.value.split(" ")[1])
                of_window = updates.get(window, [])
                if not 0 < count <= len(of_window) or _update(row) != of_window[count - 1]:
                    self._wrong(f"{row} is no update of its window, which had {len(of_window)}")
                elif count <= seen[window]:
                    self._verdict.repeated += 1
                    self._wrong(f"{row} comes after count {seen[window]}")
                seen[window] = count
            for window, each in updates.items():
                if seen[window] != len(each):
                    self._verdict.lost += 1
                    self._wrong(f"{window}: the last count was {seen[window]}, expected {len(each)}")
            closed = [(*window, each[-1]) for window, each in updates.items() if _end(window) + WINDOW_GRACE_MS <= time]
            self._same("final counts", [(*_window(row), _update(row)) for row in self._in(FINAL, partition)], closed)

    def _windows(self, partition: int) -> tuple[dict[tuple[str, int], list[Update]], list[Row], int]:
        """Return each window's updates, what was late, and the highest timestamp, from what a task has read."""
        updates: dict[tuple[str, int], list[Update]] = defaultdict(list)
        late, time = [], -1
        for row in self._in(READ, partition):
            time = max(time, row.timestamp)
            window = row.key, row.timestamp - row.timestamp % WINDOW_MS
            if _end(window) + WINDOW_GRACE_MS <= time:
                late.append(row)
                continue
            before = updates[window][-1].timestamp if updates[window] else -1
            updates[window].append(Update(len(updates[window]) + 1, max(before, row.timestamp), serial_of(row.value)))
        return updates, late, time

    # ------------------------------------------------------------------ sessions

    def _judge_sessions(self) -> None:
        """Each click is in one closed session, or late."""
        for row in self._rows[SESSIONS]:
            start, end, *serials = row.value.split(" ")
            found = [self._clicks[each] for each in serials if each in self._clicks]
            times = sorted(each.timestamp for each in found)
            if (
                len(found) != len(serials)
                or {each.key for each in found} != {row.key}
                or (times[0], times[-1], times[-1]) != (int(start), int(end), row.timestamp)
                or any(after - before > GAP_MS for before, after in pairwise(times))
                or _serial(row) not in serials
            ):
                self._wrong(f"{row} is no session of its clicks")
        for row in self._rows[LATE_CLICKS]:
            if not _same(row, self._clicks.get(row.value, row)):
                self._wrong(f"{row} was no click")
        self._once("in sessions", list(self._in_sessions().elements()), self._clicks)

    def _in_sessions(self) -> Counter[str]:
        """Return how often clicks are in closed sessions or late. A session that took one more click after it was
        closed comes again as a whole, and takes the place of the first."""
        sessions: dict[str, list[set[str]]] = defaultdict(list)
        found: Counter[str] = Counter(row.value for row in self._rows[LATE_CLICKS])
        for row in self._rows[SESSIONS]:
            serials = row.value.split(" ")[2:]
            whole = set(serials)
            sessions[row.key] = [each for each in sessions[row.key] if not each < whole]
            sessions[row.key].append(whole)
            found.update(list((Counter(serials) - Counter(whole)).elements()))
        found.update(serial for each in sessions.values() for whole in each for serial in whole)
        return found

    # ------------------------------------------------------------------ pairs

    def _judge_pairs(self) -> None:
        """Each click and view that are near each other, once; and those that are near none, when their time is over."""
        expected, alone = self._pairs()
        found = Counter(row.value for row in self._rows[PAIRS])
        both = {**self._clicks, **{row.value: row for row in self._rows[VIEWS]}}
        for row in self._rows[PAIRS]:
            made = [both[each] for each in row.value.split(" ") if each in both]
            if (
                not made
                or {each.key for each in made} != {row.key}
                or max(each.timestamp for each in made) != row.timestamp
                or _serial(row) not in row.value.split(" ")
            ):
                self._wrong(f"{row} is no pair of a click and a view, or has another's time or headers")
        surplus = [each for each, count in found.items() if count > (each in expected or each in alone)]
        if surplus:
            self._verdict.repeated += len(surplus)
            self._wrong(f"pairs that are too many: {', '.join(surplus[:5])} ...")
        if missing := self._missing_pairs():
            self._verdict.lost += len(missing)
            self._wrong(f"pairs that are missing: {', '.join(missing[:5])} ...")

    def _missing_pairs(self) -> list[str]:
        expected, alone = self._pairs()
        found = {row.value for row in self._rows[PAIRS]}
        time: dict[int, int] = defaultdict(int)
        for row in (*self._rows[CLICKS], *self._rows[VIEWS]):
            time[row.partition] = max(time[row.partition], row.timestamp)
        over = [each for each, row in alone.items() if row.timestamp + NEAR_MS + JOIN_GRACE_MS < time[row.partition]]
        return [each for each in (*expected, *over) if each not in found]

    def _pairs(self) -> tuple[set[str], dict[str, Row]]:
        """Return the values of all pairs, and those of clicks and views without a pair."""
        views: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for row in self._rows[VIEWS]:
            views[row.key].append((row.timestamp, row.value))
        for each in views.values():
            each.sort()
        pairs, paired, alone = set[str](), set[str](), dict[str, Row]()
        for row in self._rows[CLICKS]:
            mine = views[row.key]
            near = mine[
                bisect_left(mine, (row.timestamp - NEAR_MS, "")) : bisect_right(mine, (row.timestamp + NEAR_MS, "~"))
            ]
            pairs.update(f"{row.value} {view}" for _, view in near)
            paired.update(view for _, view in near)
            if not near:
                alone[f"{row.value} -"] = row
        alone.update({f"- {row.value}": row for row in self._rows[VIEWS] if row.value not in paired})
        return pairs, alone

    # ------------------------------------------------------------------ tables

    def _judge_profiles(self) -> None:
        """The last row of each user is the join of the last rows of both tables, and no row joins what never was."""
        users, regions = _table(self._rows[USERS]), _table(self._rows[REGIONS])
        ever = {(row.key, row.value) for row in (*self._rows[USERS], *self._rows[REGIONS])}
        for row in self._rows[PROFILES]:
            version, region, of_region = row.value.split(" ") if row.value else ("", "", "")
            if row.value and not {(row.key, f"{version} {region}"), (region, of_region)} <= ever:
                self._wrong(f"{row} joins rows that never were")
        expected = {
            user: f"{value} {regions[value.split(' ')[1]]}"
            for user, value in users.items()
            if value.split(" ")[1] in regions
        }
        self._compare("outputs", PROFILES, _table(self._rows[PROFILES]), expected)

    # ------------------------------------------------------------------ stores

    def _judge_stores(self, place: str, stores: Stores) -> None:
        for topic in (USERS, REGIONS):
            self._compare(place, topic, stores[topic], _table(self._rows[topic]))
        opened: dict[str, int] = {}
        ever: dict[str, int] = {}
        for partition in {row.partition for row in self._rows[READ]}:
            updates, _, time = self._windows(partition)
            for window, each in updates.items():
                name = f"{window[0]} {window[1]}"
                ever[name] = len(each)
                if _end(window) + WINDOW_GRACE_MS > time:
                    opened[name] = len(each)
        counts = stores["counts"]
        # What has closed is kept until it has expired.
        self._compare(place, "counts", {key: each for key, each in counts.items() if key in opened}, opened)
        kept = {key: each for key, each in counts.items() if key not in opened}
        self._compare(place, "counts, closed", kept, {key: ever.get(key) for key in kept})
        if len(stores["closing-store"]) != len(opened):
            self._wrong(f"{place}: {len(stores['closing-store'])} windows wait to close, expected {len(opened)}")

    def _compare(self, place: str, name: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        differing = [
            f"{key}: {found.get(key)} instead of {expected.get(key)}"
            for key in sorted(found.keys() | expected.keys())
            if found.get(key) != expected.get(key)
        ]
        if differing:
            self._wrong(f"{place}: {name!r}: {len(differing)} of {len(expected)} differ: {'; '.join(differing[:3])}")

    # ------------------------------------------------------------------ helpers

    def _in(self, topic: str, partition: int) -> list[Row]:
        return [row for row in self._rows[topic] if row.partition == partition]

    def _wrong(self, what: str) -> None:
        self._verdict.wrong.append(what)

    def _once(self, what: str, found: Sequence[str], wanted: Iterable[str]) -> None:
        """Check that each serial that is wanted was found once."""
        counts = Counter(found)
        lost = [each for each in wanted if not counts[each]]
        repeated = [each for each, count in counts.items() if count > 1]
        self._verdict.lost += len(lost)
        self._verdict.repeated += len(repeated)
        if lost:
            self._wrong(f"not {what}: {', '.join(lost[:5])} ...")
        if repeated:
            self._wrong(f"more than once {what}: {', '.join(repeated[:5])} ...")

    def _same_order(self, what: str, before: Sequence[Row], after: Sequence[Row]) -> None:
        """Check that partitions of `after` have the serials of `before`, each once and in order."""
        self._once(what, [serial_of(row.value) for row in after], [serial_of(row.value) for row in before])
        for partition in {row.partition for row in before}:
            first, second = (
                [serial_of(row.value) for row in rows if row.partition == partition] for rows in (before, after)
            )
            if first != second:
                self._wrong(f"partition {partition}: not {what} in the order of the input")

    def _same(self, what: str, found: Sequence[Any], expected: Sequence[Any]) -> None:
        """Check that two have the same members, each as often."""
        missing, surplus = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
        self._verdict.lost += missing.total()
        self._verdict.repeated += surplus.total()
        for which, rows in (("missing", missing), ("too many", surplus)):
            if rows:
                self._wrong(f"{what}: {rows.total()} {which}, e.g. {next(iter(rows))}")


def _end(window: tuple[str, int]) -> int:
    return window[1] + WINDOW_MS


def _window(row: Row) -> tuple[str, int]:
    return row.key, int(row.value.split(" ")[0])


def _update(row: Row) -> Update:
    return Update(int(row.value.split(" ")[1]), row.timestamp, _serial(row))


def _serial(row: Row) -> str:
    """Return the serial in a row's headers, which are those of the record that caused it."""
    return " ".join((value or b"").decode() for name, value in row.headers if name == "serial")


def _facts(row: Row) -> tuple[Any, ...]:
    return row.key, row.value, row.timestamp, row.headers


def _same(row: Row, other: Row, key: str | None = None) -> bool:
    """Return whether a row has the time, the headers and the key of another one."""
    return (row.key, row.timestamp, row.headers) == (key or other.key, other.timestamp, other.headers)


def _at(rows: Sequence[Row], timestamp: int) -> str:
    """Return the value that a table's row had at a time, from its updates in order."""
    return [row.value for row in rows if row.timestamp <= timestamp][-1]


def _table(rows: Iterable[Row]) -> dict[str, str]:
    """Return the last value of each key; a row without a value deletes its key."""
    last = {row.key: row.value for row in rows}
    return {key: value for key, value in last.items() if value}
