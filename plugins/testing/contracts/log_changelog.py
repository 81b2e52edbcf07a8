"""The tests that every `LogChangelog` must pass; subclass `LogChangelogContract` to run them over yours."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from random import Random
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import ChangelogError, Commit, Log, LogChangelog, TopicPartition, version_counter
from penstock.plugins.logs.memory import MemoryLog
from penstock.store import Changes
from penstock.store.envelope import wrap
from penstock.store.kept_store import KeptStore

from .changelog_tests import filled, restored
from .expectations import State, applied, expect

_APPLICATION, _TASK = "application", "0_1"
_INPUT = TopicPartition("in", 1)
_STORES = {"counts": KeptStore("memory"), "names": KeptStore("memory", timestamped=True)}


class LogChangelogContract:
    """The contract of a changelog in the log, as tests; run them in a test class of yours.

    >>> from penstock.plugins.changelogs.topic import TopicChangelog
    >>> class TestTopic(LogChangelogContract):
    ...     changelog = TopicChangelog

    Needs pytest and hypothesis (`pip install 'penstock-streams[testing]'`).
    """

    changelog: type[LogChangelog]
    examples: ClassVar[int] = 50
    """How many random histories are tried."""

    def open_log(self) -> Log:
        """Return a new, empty log; by default one in memory."""
        return MemoryLog()

    def test_any_history_is_restored(self) -> None:
        """The last commit is restored to any older copy, whatever was committed or lost since."""
        what = st.sampled_from(["commit", "crash before the commit", "open elsewhere"])
        steps = st.lists(st.tuples(what, _changes, st.integers(0, 9)), max_size=30)
        settings(max_examples=self.examples, deadline=None)(given(steps)(self._restore_any_history))()

    def _restore_any_history(self, steps: list[tuple[str, Changes, int]]) -> None:
        log = self._prepared()
        task = _Task(self, log)
        known = {task.version: task.state}
        for what, changes, number in steps:
            if what == "commit":
                task.commit(changes)
                known[task.version] = task.state
                continue
            have: str | None = task.version  # the copy of the host that crashed
            if what == "crash before the commit":
                task.next_version()
                task.changelog.records(changes)
            else:
                have = [None, "restoring:000001-x:1", "999999-elsewhere", *known][number % (len(known) + 3)]
            task.changelog.close()
            found = _Task(self, log, have=have, known=known)
            expect((found.version, filled(found.state)), (task.version, filled(task.state)))
            task = found

    def test_any_rows_are_restored(self) -> None:
        """Every byte, keys and values of any length, thousands of rows in one commit, and deletions of a third."""
        random = Random(1)
        rows = {bytes([byte]): wrap(bytes([byte])) for byte in range(256)}
        rows |= {b"": wrap(b"empty key"), b"empty value": wrap(b""), b"k" * 5000: wrap(b"long key")}
        rows |= {b"large%d" % size: wrap(random.randbytes(size)) for size in (65_535, 65_536, 500_000)}
        rows |= {b"row%06d" % row: wrap(b"%d" % row) for row in range(5000)}
        log = self._prepared()
        task = _Task(self, log)
        task.commit({"counts": sorted(rows.items()), "names": [(b"counts", wrap(b"1", 5))]})
        known = {task.version: task.state}
        between = task.version
        task.commit({"counts": [(key, None) for key in sorted(rows)[::3]], "names": [(b"counts", None)]})
        for have in (None, between):
            found = filled(_Task(self, log, have=have, known=known).state)
            expect(found, filled(task.state), f"rows restored for a copy at {have}")

    def test_records_are_those_of_the_task(self) -> None:
        """A changelog's records are in the store's topic and the task's partition; a deleted row is a tombstone."""
        task = _Task(self, self._prepared())
        task.next_version()
        rows: list[tuple[bytes, bytes | None]] = [(b"a", wrap(b"1")), (b"b", None), (b"c", wrap(b""))]
        found = [
            (batch.topic, value is None, key is None, batch.partitions and batch.partitions[at])
            for batch in task.changelog.records({"counts": rows})
            for at, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True))
        ]
        topic = self.changelog.topic_of(_APPLICATION, "counts")
        of_rows = [(is_gone, no_key) for name, is_gone, no_key, _ in found if name == topic]
        expect(
            of_rows, [(False, False), (True, False), (False, False)], "a record for each row, None for a deleted one"
        )
        for name, _, no_key, partitions in found:
            assert not no_key, f"a record of a changelog topic has a key: {name}"
            expect(list(partitions or ()), [1], f"records of task {_TASK} go to partition 1 of {name}")

    def test_tasks_and_applications_are_apart(self) -> None:
        """Tasks and applications share no records."""
        log = self._prepared()
        places = [(_APPLICATION, "0_0"), (_APPLICATION, _TASK), ("other", _TASK)]
        tasks = [_Task(self, log, *place) for place in places]
        for number, task in enumerate(tasks):
            task.commit({"counts": [(b"key", wrap(b"%d" % number))]})
        for number, (task, place) in enumerate(zip(tasks, places, strict=True)):
            expect(_Task(self, log, *place).state, {"counts": {b"key": wrap(b"%d" % number)}})
            expect({"counts": {b"key": wrap(b"%d" % number)}}, task.state)

    def test_a_new_history_replaces_what_a_store_had(self) -> None:
        """A new history replaces an earlier store's entries; other stores are unchanged."""
        log = self._prepared()
        task = _Task(self, log)
        task.commit({"counts": [(b"a", wrap(b"1")), (b"b", wrap(b"2"))], "names": [(b"n", wrap(b"x", 5))]})
        entries = [("counts", b"a", wrap(b"3")), ("counts", b"c", wrap(b"4"))]
        task.committer.commit(Commit({_INPUT: 9}, task.next_version()), task.changelog.begin(["counts"], iter(entries)))
        expect(_Task(self, log).state, {"counts": {b"a": wrap(b"3"), b"c": wrap(b"4")}, "names": {b"n": wrap(b"x", 5)}})

    def test_a_reset_that_was_killed_leaves_no_history(self) -> None:
        """A reset that was killed between setting positions and deleting topics leaves no history.

        A copy from before the reset is not caught up.
        """
        log = self._prepared()
        before = _Task(self, log)
        before.commit({"counts": [(b"a", wrap(b"1"))]})
        self._set_back(log)
        _Task(self, log).commit({"counts": [(b"b", wrap(b"2"))]})
        for have in (None, before.version):
            expect(
                _Task(self, log, have=have, known={before.version: before.state}).state, {"counts": {b"b": wrap(b"2")}}
            )

    def test_any_age_of_a_copy_leads_to_the_state(self) -> None:
        """A copy is restored correctly for any result of `last_seen`. A copy of an earlier history is not caught up."""
        log = self._prepared()
        before = _Task(self, log)
        before.commit({"counts": [(b"a", wrap(b"1"))]})
        self._set_back(log)
        task = _Task(self, log)
        task.commit({"counts": [(b"b", wrap(b"2")), (b"c", wrap(b"3"))]})
        known = {before.version: before.state, task.version: task.state}
        task.commit({"counts": [(b"b", None), (b"d", wrap(b"4"))]})
        for seconds in (None, 0.0, 1e3, 1e8):
            for have in (None, *known):
                found = _Task(self, log, have=have, known=known, last_seen=lambda _: seconds)  # noqa: B023
                what = f"the state for a copy at {have} that was the last version {seconds} seconds ago"
                expect(found.state, {"counts": {b"c": wrap(b"3"), b"d": wrap(b"4")}}, what)

    def test_lost_records_are_an_error(self) -> None:
        """A task never starts without a part of its state."""
        log = self._prepared()
        task = _Task(self, log)
        for number in range(2):
            task.commit({"counts": [(b"a", wrap(b"%d" % number))]})
        topic = self.changelog.topic_of(_APPLICATION, "counts")
        log.delete_topic(topic)
        log.create_topic(topic, 2, self.changelog.topic_config, internal=True)
        with pytest.raises(ChangelogError, match=topic):
            _Task(self, log)

    def test_a_history_without_a_commit_is_an_error(self) -> None:
        """Lost positions must not become a fresh start on an old state."""
        log = self._prepared()
        _Task(self, log).commit({"counts": [(b"a", wrap(b"1"))]})
        log.delete_commits(_APPLICATION)
        with pytest.raises(ChangelogError, match=self.changelog.topic_of(_APPLICATION, "counts")):
            _Task(self, log)

    def test_closing_twice_is_fine(self) -> None:
        """`close` may be called by an error path that ran already."""
        changelog = _Task(self, self._prepared()).changelog
        changelog.close()
        changelog.close()

    def _set_back(self, log: Log) -> None:
        """Set the positions of the application as a reset does that is killed before it deletes the history."""
        topics = [TopicPartition(self.changelog.topic_of(_APPLICATION, store), 1) for store in _STORES]
        log.set_positions(_APPLICATION, {_INPUT: 0, **log.end_offsets(topics)})

    def _prepared(self) -> Log:
        log = self.open_log()
        log.create_topic(_INPUT.topic, 2)
        expect(self.changelog.topic_config["cleanup.policy"], "compact")
        for application in (_APPLICATION, "other"):
            for store in _STORES:
                topic = self.changelog.topic_of(application, store)
                log.create_topic(topic, 2, self.changelog.topic_config, internal=True)
        return log


class _Task:
    """A task with a local copy of its state, which is brought to the last commit when it is opened."""

    def __init__(
        self,
        contract: LogChangelogContract,
        log: Log,
        application_id: str = _APPLICATION,
        task_id: str = _TASK,
        have: str | None = None,
        known: Mapping[str, State] = {},
        last_seen: Callable[[str], float | None] | None = None,
    ) -> None:
        self.committer = log.open_committer(application_id, task_id, [_INPUT])
        self.changelog = contract.changelog("", application_id, task_id, log=log, stores=_STORES)
        self.changelog.last_seen = last_seen
        self.version = ""
        self.state: State = {}
        last = self.committer.committed
        if last is None:
            self.commit({})
        else:
            self.version = last.version
            self.state = known[have] if have == last.version else restored(self.changelog, last.version, have, known)

    def next_version(self) -> str:
        """Return a new name for the version after the present one, as the engine forms it."""
        counter = version_counter(self.version) + 1 if self.version else 0
        return f"{counter:012d}-{secrets.token_hex(4)}_00c0ffee{self.changelog.version_suffix(self.version or None)}"

    def commit(self, changes: Changes) -> None:
        version = self.next_version()
        self.committer.commit(Commit({_INPUT: version_counter(version)}, version), self.changelog.records(changes))
        self.version, self.state = version, applied(self.state, changes)


_keys = st.binary(max_size=3)
_values = st.none() | st.binary(max_size=4)


def _rows(store: str) -> st.SearchStrategy[list[tuple[bytes, bytes | None]]]:
    """Return rows of a store as it writes them: its values are in envelopes."""
    times = st.integers(0, 1 << 40) if _STORES[store].timestamped else st.none()
    rows = st.builds(lambda value, time: None if value is None else wrap(value, time), _values, times)
    return st.dictionaries(_keys, rows, min_size=1, max_size=6).map(lambda entries: sorted(entries.items()))


_changes = st.fixed_dictionaries({}, optional={store: _rows(store) for store in _STORES})
