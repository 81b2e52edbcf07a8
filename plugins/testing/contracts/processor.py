"""The tests that every stream program should pass; subclass `ProcessorContract` to run them over yours."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest

from hypothesis import strategies as st

from penstock.plugins.engine.task.temporary import TemporaryDirectory

from .growth import check_growth
from .program_runs import History, SecondProcess, WatchedLog, do, repeated, visits_of
from .program_under_test import ProgramUnderTest
from .surroundings import WEEK_SECONDS, ZONES, MachineClock, in_other_surroundings

_MOST_PARTITIONS, _MOST_TOGETHER, _MANY_RECORDS = 3, 8, 1_200
_ELSEWHERE, _GROWING, _OF_OTHER_TIMES, _OF_MANY_RECORDS = 8, 5, 15, 2
"""Number of examples of tests whose examples take long."""
_YEARS_MS = 50 * 366 * 86_400_000
_TOGETHER_IN_A_VISIT = 1_000_000


class ProcessorContract(ProgramUnderTest):
    """A program compared with a function in plain Python that says what it answers; run it in a test class of yours.

    >>> from penstock import Topology, ValueTransformer
    >>> class Double(ValueTransformer):
    ...     def transform(self, key, value):
    ...         return None if value is None else 2 * value
    >>> def doubling():
    ...     topology = Topology().add_source("in", "numbers", value_serde="int").add_processor("double", Double, "in")
    ...     return topology.add_sink("out", "doubled", "double", value_serde="int")
    >>> class TestDouble(ProcessorContract):
    ...     program = staticmethod(doubling)
    ...     reference = staticmethod(lambda records: [(key, value and 2 * value) for key, value, *_ in records])

    The answers have to be the same with any number of partitions, when tasks are re-opened after each commit, move or
    continue in a process with another hash seed, when records are processed again after a crash, however many records a
    task processes between two commits, in another thread, time zone and year, and where the same program runs beside
    it; and state must not grow for ever. So state outside stores is found, a store that is not logged, a changelog that
    lost something, an effect outside that is repeated, the order of a set, a record's value that is changed in place,
    and whatever depends on where a batch ends or when and where it is processed.

    Needs pytest and hypothesis (`pip install 'penstock-streams[testing]'`).
    """

    def test_it_answers_as_the_reference(self) -> None:
        """In one partition, with a commit after each record."""
        self._try(lambda data: self._check(self._history(data, alone=True)))

    def test_any_number_of_partitions(self) -> None:
        """Records of one key are in one partition; each partition has a task with state of its own."""
        partitions = st.integers(2, _MOST_PARTITIONS)
        self._try(lambda data: self._check(self._history(data, alone=True), partitions=data.draw(partitions)))

    def test_tasks_are_reopened(self) -> None:
        """After each commit, as Spark may do: all state has to be in stores."""
        self._try(lambda data: self._check(self._history(data, alone=True), reopen_tasks=True))

    def test_any_batches(self) -> None:
        """Where a batch ends must not show, with caches and buffers that are written at a commit included."""

        def check(data: st.DataObject) -> None:
            partitions, commit_every = data.draw(st.integers(1, 2)), data.draw(st.integers(2, _MOST_TOGETHER))
            self._check(self._history(data), partitions=partitions, commit_every=commit_every)

        self._try(check)

    def test_tasks_move(self) -> None:
        """Between some batches, as in a rebalance: to hosts that have to restore their state."""

        def check(data: st.DataObject) -> None:
            commit_every = data.draw(st.integers(1, _MOST_TOGETHER))
            self._check(self._history(data, moves=True), partitions=2, commit_every=commit_every)

        self._try(check)

    def test_records_are_processed_again_after_a_crash(self) -> None:
        """What a record did before the crash must not show: neither in answers, nor outside."""

        def check(data: st.DataObject) -> None:
            history, commit_every = self._history(data), data.draw(st.integers(1, _MOST_TOGETHER))
            once, again = (self._effects(history, crashes, commit_every=commit_every) for crashes in (False, True))
            for name in once:
                assert once[name] == again.get(name), (
                    f"{name} is {once[name]!r} when records are processed once, and {again.get(name)!r} when some are "
                    "processed again after a crash, as on Spark. Only stores and outputs go back with the commit: "
                    f"write to a topic, and act on that; with {history}"
                )

        self._try(check)

    def test_a_second_process_continues(self) -> None:
        """With what is committed alone, and another hash seed: sets and hashes are others there."""
        with TemporaryDirectory("contract") as directory, SecondProcess() as second:
            runs: list[int] = []

            def check(data: st.DataObject) -> None:
                runs.append(1)
                place = directory / str(len(runs))
                options = {"log": f"local:{place / 'log'}", "changelog": f"directory:{place / 'changelog'}"}
                history, at = self._history(data), data.draw(st.integers(0, 9))
                with self._driver(partitions=2, **options) as driver:
                    sender = self._sender(driver, 2)
                    steps = list(sender.steps(history))
                    half = len(steps) * at // 10
                    do(driver, steps[:half])
                    clock = {"initial_wall_clock_ms": driver.wall_clock_ms}
                second.do(self._application, steps[half:], {"partitions": 2, **self.options, **options, **clock})
                with self._driver(partitions=2, **options) as driver:
                    self._compare(
                        self._left(driver, sender), f"a second process from step {half} of {len(steps)} on; {history}"
                    )

            self._try(check, _ELSEWHERE)

    def test_visits_are_interrupted(self) -> None:
        """A visitor called with a key at a time, through crashes and new processes, leaves what one go leaves.

        There are two visits: what the first one did may be known by stores only.
        """
        visitors = visits_of(self._application, self.visit_arguments)

        def check(data: st.DataObject) -> None:
            history, visit = self._history(data), data.draw(st.sampled_from(visitors))
            place, partitions = data.draw(st.integers(0, 10)), data.draw(st.integers(1, 2))
            reopens = data.draw(st.booleans()) and type(self).probe is None  # a probe sees one process
            run = partial(self._visited, history, visit, place, partitions=partitions)
            parts, outside = run(log=WatchedLog(partitions), reopen_tasks=reopens)
            whole, expected = run(commit_every=_TOGETHER_IN_A_VISIT)
            if not reopens:  # else each key is visited in a process of its own
                parts, whole = parts | outside, whole | expected
            for name in whole | parts:
                assert whole.get(name) == parts.get(name), (
                    f"{name} is {whole.get(name)!r} when {visit[0]} visits all keys in one go, and {parts.get(name)!r} "
                    "when crashes and new processes come between two keys, as on Spark. Only stores and outputs go "
                    "back with the commit, and nothing else is there in the next process: let a visitor decide by its "
                    f"key, the value and stores alone. A visit comes after {place} tenths and at the end of {history}"
                )

        if visitors:
            self._try(check)

    def test_in_other_surroundings(self) -> None:
        """In another thread and time zone, while the machine's clock jumps ahead: no answer may depend on them."""

        def check(data: st.DataObject) -> None:
            history, zone = self._history(data, alone=True), data.draw(st.sampled_from(ZONES))
            clock = MachineClock(data.draw(st.integers(0, WEEK_SECONDS)))
            program = self._application  # made here, and not in the other thread
            left = in_other_surroundings(lambda: self._ran(history, clock=clock, program=program), zone)
            self._compare(
                left, f"a thread of its own, the time zone TZ={zone}, jumps of the machine's clock; {history}"
            )

        self._try(check)

    def test_at_other_times(self) -> None:
        """Records of today, of 2038 and of the year 9999, of which the wall clock may be far ahead, or far behind."""

        def check(data: st.DataObject) -> None:
            begin = int(data.draw(st.sampled_from(self.begins)).timestamp()) * 1000
            history = self._history(data, begin=begin)
            ahead = 0 if self.sees_clock else data.draw(st.sampled_from([0, begin, begin + _YEARS_MS]))
            self._check(history, initial_wall_clock_ms=ahead)

        if self.begins:
            self._try(check, _OF_OTHER_TIMES)

    def test_many_records(self) -> None:
        """More of them than a buffer, a cache or a limit has room for, in the time of a few."""

        def check(data: st.DataObject) -> None:
            if events := self._events(data):
                rounds = -(-_MANY_RECORDS // len(events))
                span = 1 + max(record.timestamp for _, record in events)
                sources = self._ends.sources
                many = repeated(events, sources, rounds, lambda number, time: (number * span + time) // rounds)
                batches = [many[at : at + _MOST_TOGETHER] for at in range(0, len(many), _MOST_TOGETHER)]
                self._check(History(batches, [0] * len(batches)), commit_every=_MOST_TOGETHER)

        self._try(check, _OF_MANY_RECORDS)

    def test_two_of_it_share_nothing(self) -> None:
        """Two run in one process, by turns, as two nodes of one class and two tasks do, with the same keys."""

        def check(data: st.DataObject) -> None:
            histories = self._history(data), self._history(data)
            with self._pair() as drivers:
                senders = [self._sender(driver, 1) for driver in drivers]
                steps = [sender.steps(history) for sender, history in zip(senders, histories, strict=True)]
                for both in zip_longest(*steps):
                    for driver, step in zip(drivers, both, strict=True):
                        do(driver, [step] if step else [])
                for number, (driver, sender) in enumerate(zip(drivers, senders, strict=True)):
                    how = f"the same program beside it in one process, with {histories[1 - number]}"
                    self._compare(self._left(driver, sender), f"{how}; its own {histories[number]}")

        self._try(check)

    def test_state_does_not_grow_for_ever(self) -> None:
        """The same records again and again, a year apart: entries have to be deleted, or to expire."""
        if self.bounded:
            self._try(lambda data: check_growth(self._events(data), self._driver, self._ends), _GROWING)
