"""The cases in which penstock deliberately answers otherwise than Kafka Streams: what differs, and why.

A difference is strict: it must be just the one that is described here. A case in LISTED that is answered as recorded is
a failure, too: its entry is then wrong. Other cases of the same kinds may differ in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from penstock.plugins.dsl.operators import suppress

Case = dict[str, Any]
Played = dict[str, Any]
Replay = Callable[[Case], Played]
"""Plays another case on the same driver."""


class Difference(ABC):
    """One kind of difference."""

    reason: str

    @abstractmethod
    def may_be_in(self, case: Case) -> bool:
        """Return whether a case is of the kind in which it can occur."""

    @abstractmethod
    def explains(self, case: Case, got: Played, replay: Replay) -> bool:
        """Return whether what happened differs from what was recorded in this way, and in no other."""


def other_parts_agree(case: Case, got: Played, part: str) -> bool:
    """Return whether all but one part of what happened is as recorded."""
    expected, other = case["expected"], case.get("alt_expected") or {}
    parts = {"outputs", "stores", "metrics"} - {part}
    return all(got[each] in (expected[each], other.get(each)) for each in parts if each in expected)


def row(output: dict[str, Any], *but: str) -> str:
    return repr(sorted((name, value) for name, value in output.items() if name not in but))


class LostWindows(Difference):
    """More windows are emitted than were recorded."""

    reason = (
        "with the default retention, Kafka Streams loses windows that close when stream time jumps, because its store "
        "drops them before it looks for them; penstock emits them"
    )

    def may_be_in(self, case: Case) -> bool:
        return case["params"].get("emit") == "on_window_close" and "retention" not in case["params"]

    def explains(self, case: Case, got: Played, replay: Replay) -> bool:
        """All that was recorded is there in its order, and all is as with a retention that loses nothing.

        (But with that, sessions that were emitted may still be merged.)
        """
        ample = {**case, "params": {**case["params"], "retention": 1_000_000}}
        rows = iter(got["outputs"])
        kept = all(any(each == found for found in rows) for each in case["expected"]["outputs"])
        is_same = case["params"]["window"]["kind"] == "session" or replay(ample)["outputs"] == got["outputs"]
        return kept and is_same and other_parts_agree(case, got, "outputs")


class EmittedAtOnce(Difference):
    """Windows are emitted earlier than was recorded."""

    reason = (
        "Kafka Streams looks for closed windows once a second of the wall clock; penstock emits a window at the record "
        "that closes it"
    )

    def may_be_in(self, case: Case) -> bool:
        return bool(case.get("config", {}).get("window_close_emit_interval_ms"))

    def explains(self, case: Case, got: Played, replay: Replay) -> bool:
        """What was recorded is there, nothing later than it was, and all is as without that interval."""
        expected = case["expected"]["outputs"]
        ours = {row(each, "op", "headers"): each["op"] for each in got["outputs"]}
        once = Counter(row(each, "op", "headers") for each in got["outputs"])
        in_time = all(ours.get(row(each, "op", "headers"), each["op"] + 1) <= each["op"] for each in expected)
        return in_time and max(once.values(), default=1) == 1 and other_parts_agree(case, got, "outputs")


class ExpiredRows(Difference):
    """Fewer rows are in the stores at the end than were recorded."""

    reason = (
        "a cached window or session store of Kafka Streams also returns rows that have expired; those of penstock "
        "never do"
    )

    def may_be_in(self, case: Case) -> bool:
        return bool(case.get("config", {}).get("cache_max_bytes")) and "window" in case["params"]

    def explains(self, case: Case, got: Played, replay: Replay) -> bool:
        """Just the rows that have expired are not there."""
        if not other_parts_agree(case, got, "stores"):
            return False
        for name, store in case["expected"].get("stores", {}).items():
            entries = store["entries"]
            if store["type"] in ("window", "session"):
                field = "end" if store["type"] == "session" else "start"
                newest = max((each[0][field] for each in entries), default=0)
                entries = [each for each in entries if each[0][field] > newest - retention_of(case["params"])]
            if got["stores"][name]["entries"] != entries:
                return False
        return True


class KeptRows(Difference):
    """More rows are in the stores at the end than were recorded."""

    reason = (
        "sessions and sliding windows are in their stores until they take no more records; those of Kafka Streams "
        "expire a ms or two before, and a record that comes then is alone in its session, or its window lacks others, "
        "also where all come in order"
    )

    def may_be_in(self, case: Case) -> bool:
        params = case["params"]
        return "retention" not in params and params.get("window", {}).get("kind") in KEPT_LONGER_MS

    def explains(self, case: Case, got: Played, replay: Replay) -> bool:
        """Just the rows of those last ms are there, too."""
        if not other_parts_agree(case, got, "stores"):
            return False
        kept = retention_of(case["params"]) - KEPT_LONGER_MS[case["params"]["window"]["kind"]]
        for name, store in case["expected"].get("stores", {}).items():
            field = "end" if store["type"] == "session" else "start"
            entries = got["stores"][name]["entries"]
            newest = max((each[0][field] for each in entries), default=0)
            if [each for each in entries if each[0][field] > newest - kept] != store["entries"]:
                return False
        return True


class LetGoLater(Difference):
    """A session or sliding window leaves its suppression later than was recorded."""

    reason = (
        "a session or a sliding window leaves a suppression when it takes no more records; in Kafka Streams it leaves "
        "one ms before, and a record that comes then sends it again"
    )

    def may_be_in(self, case: Case) -> bool:
        params = case["params"]
        return "suppress" in params and params.get("window", {}).get("kind") in KEPT_LONGER_MS

    def explains(self, case: Case, got: Played, replay: Replay) -> bool:
        """All is as recorded where it leaves one ms earlier."""
        closes_after = suppress.grace_above
        with patch.object(suppress, "grace_above", lambda step: closes_after(step) - 1):
            earlier = replay(case)
        return all(earlier[part] == expected for part, expected in case["expected"].items())


KEPT_LONGER_MS = {"session": 1, "sliding": 2}
"""How much longer than in Kafka Streams windows are kept, by their kinds."""


def retention_of(params: dict[str, Any]) -> int:
    window = params["window"]
    lengths = {"tumbling": "size", "hopping": "size", "session": "gap", "sliding": "diff"}
    length: int = window[lengths[window["kind"]]] * (2 if window["kind"] == "sliding" else 1)
    needed: int = length + window.get("grace", 0) + KEPT_LONGER_MS.get(window["kind"], 0)
    return needed if "retention" not in params else max(int(params["retention"]), needed)


class OnPurpose(Difference):
    """What penstock answers instead is in the case, as `penstock`."""

    label: str

    def may_be_in(self, case: Case) -> bool:
        return case.get("differs") == self.label

    def explains(self, case: Case, got: Played, replay: Replay) -> bool:
        """All is as the case says for penstock, and the rest as it was recorded."""
        expected = {**case["expected"], **case["penstock"]}
        return all(got[part] == expected[part] for part in ("outputs", "metrics"))


class SessionHeaders(OnPurpose):
    label = "headers_of_sessions"
    reason = (
        "results of sessions have the headers of the record that caused them, as those of all other windows; in Kafka "
        "Streams they have none without a record cache"
    )


class OptimisedSelfJoins(OnPurpose):
    label = "optimised_self_joins"
    reason = (
        "a join of a stream with itself answers the same with and without `single_store_self_join`; in Kafka Streams "
        "it sends other results then, or in another order, for records that are late, and also rewrites left and outer "
        "joins, which here keep two stores"
    )


class SuppressedSelfJoins(OnPurpose):
    label = "suppressed_self_joins"
    reason = (
        "a suppressed table that is joined with itself is joined with the row that it sends; in Kafka Streams one side "
        "still has the row before"
    )


class RowsSentBefore(OnPurpose):
    label = "rows_sent_before"
    reason = (
        "each row counts once in its group, with and without a record cache: groups and joins behind an aggregation "
        "or a suppressed table get as old value what was sent before, if anything was. In Kafka Streams without a "
        "cache the first old value of an aggregation is what its initializer returned, a session of one time has "
        "none, and the old value of a suppressed table is what it kept back last; so counts and sums of groups are "
        "wrong"
    )


class DeletedSelfJoins(Difference):
    """A deletion of a row is two more deletions of the result, one by each side."""

    reason = (
        "an inner join of a table with itself, or with what is made of it, deletes a result whose row is deleted, and "
        "sends a verb behind it the result that it sent before as the old value; in Kafka Streams the result stays for "
        "ever, since each side finds no other row, and the old value is one that was never sent"
    )

    def may_be_in(self, case: Case) -> bool:
        return bool(case["topology"] == "table_self_join" and case["params"]["type"] == "inner")

    def explains(self, case: Case, got: Played, replay: Replay) -> bool:
        """All else is as recorded."""
        deleted = {number: each["key"] for number, each in enumerate(case["inputs"]) if each.get("value") is None}
        more = [each for each in got["outputs"] if each["value"] is None and deleted.get(each["op"]) == each["key"]]
        rest = [each for each in got["outputs"] if each not in more]
        are_two = {*Counter(each["op"] for each in more).values()} == {2}
        is_rest: bool = rest == case["expected"]["outputs"]
        return are_two and is_rest and other_parts_agree(case, got, "outputs")


class KeptTombstones(OnPurpose):
    label = "kept_tombstones"
    reason = (
        "a versioned store keeps when a key was deleted, so an older record that comes later does not bring it back; "
        "Kafka Streams forgets the deletion if no older version is left"
    )


class SessionsWithoutGap(OnPurpose):
    label = "sessions_without_a_gap"
    reason = (
        "sessions whose gap and grace are 0 take together the records of one time; the store of Kafka Streams, whose "
        "retention is 0 then, keeps none of them"
    )


KINDS: tuple[Difference, ...] = (
    EmittedAtOnce(),
    LostWindows(),
    ExpiredRows(),
    KeptRows(),
    LetGoLater(),
    SessionHeaders(),
    OptimisedSelfJoins(),
    SuppressedSelfJoins(),
    RowsSentBefore(),
    DeletedSelfJoins(),
    KeptTombstones(),
    SessionsWithoutGap(),
)

LISTED = {
    "windowed/hopping_close_default_retention-s128": LostWindows,
    "windowed/tumbling_close_throttled-s131": EmittedAtOnce,
    "windowed/tumbling_close_throttled-s132": EmittedAtOnce,
    "windowed/session_reduce-s101": KeptRows,
    "windowed/sliding_reduce-s103": KeptRows,
    "windowed/sliding_aggregate-s109": KeptRows,
    "windowed/sliding_aggregate-s110": KeptRows,
    "windowed/sliding_inorder-s119": KeptRows,
    "windowed/cogroup_sliding-s137": KeptRows,
    "suppress/session_final-s71": LetGoLater,
    "suppress/session_final-s72": LetGoLater,
    "suppress/sliding_final-s73": LetGoLater,
    "caching/hopping-s279": ExpiredRows,
    "caching/session-s280": ExpiredRows,
    "caching/sliding-s281": ExpiredRows,
    "misc/table_self_join-s268": DeletedSelfJoins,
    "steps/headers_of_sessions": SessionHeaders,
    "steps/optimised_self_joins": OptimisedSelfJoins,
    "steps/suppressed_self_joins": SuppressedSelfJoins,
    "steps/rows_of_aggregations": RowsSentBefore,
    "steps/rows_that_were_suppressed": RowsSentBefore,
    "steps/kept_tombstones": KeptTombstones,
    "steps/sessions_without_a_gap": SessionsWithoutGap,
}
"""The recorded cases that differ, and how."""


def explained(case: Case, got: Played, replay: Replay) -> str:
    """Return why what happened may differ from what was recorded; "" if nothing here says so."""
    for kind in KINDS:
        listed = LISTED.get(case["name"], type(kind))
        if isinstance(kind, listed) and kind.may_be_in(case) and kind.explains(case, got, replay):
            return kind.reason
    return ""
