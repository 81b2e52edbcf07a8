"""The tests that each of our engines must pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from penstock import (
    WALL_CLOCK_TIME,
    Application,
    Clock,
    ConfigError,
    IncompatibleStateError,
    LeaseTakenError,
    OutputBatch,
    ProcessingError,
    Processor,
    Record,
    Settings,
    TopicPartition,
    Topology,
    TopologyError,
    key_value_store,
)
from penstock.plugins.engine.run.engine import Engine, StartedRun
from penstock.plugins.engine.run.order import RunOrder, Trigger
from penstock.plugins.engine.run.progress import RunProgress, RunSummary
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.testing.contracts.expectations import expect

_Found = TypeVar("_Found")


class _Count(Processor):
    """Forwards how often it has seen the key; fails where the value is "bad"."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        if record.value == "bad":
            raise ValueError("a bad record")
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(str(count)))


class _Careful(_Count):
    """The same, and skips what is bad."""

    def process(self, record: Record) -> None:
        if record.value != "bad":
            super().process(record)


class _Rings(Processor):
    """Forwards the time of the wall clock, once a second of it."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1s", self.ring, WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        pass

    def ring(self, now_ms: int) -> None:
        self.context.forward(Record("ring", str(now_ms), now_ms))


def counting(processor: type[Processor] = _Count) -> Topology:
    """Return the program of these tests."""
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("count", processor, "in", stores=[key_value_store("counts", value_serde="int")])
        .add_sink("out", "out", "count")
    )


class EngineContract:
    """The contract of an engine, as tests."""

    engine: ClassVar[type[Engine]]
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the applications that it runs, beside their topics and directories."""
    options: ClassVar[Mapping[str, Any]] = {}
    """What `run` takes besides."""
    triggers: ClassVar[Sequence[str]] = ("0s", "continuous")
    """Triggers of runs that go on until they are stopped."""
    seconds: ClassVar[float] = 60.0
    """The longest that anything may take, until the tests give up."""

    def test_each_record_once_and_on_from_there(self, tmp_path: Path) -> None:
        """With available_now a run ends when it has read what is there; the next one continues with its state."""
        with self.log(tmp_path) as log:
            log.put("in", ["a", "b", "a", "c"])
            summary = self.run(log.application("counts", counting()), stop=threading.Event())
            expect(log.read("out"), {"a": ["1", "2"], "b": ["1"], "c": ["1"]}, "each record is processed once")
            self._check_summary(summary, 4)
            log.put("in", ["a", "d"])
            before = _open_now()
            self._check_summary(self.run(log.application("counts", counting())), 2)
            between = _open_now()
            expect(
                log.read("out"), {"a": ["1", "2", "3"], "b": ["1"], "c": ["1"], "d": ["1"]},
                "the next run continues, with the state of the last one",
            )  # fmt: skip
            self._check_summary(self.run(log.application("counts", counting())), 0)
            expect(sum(map(len, log.read("out").values())), 6, "a run without records writes nothing: records")
            for what, left in _left_open(before, between, self.seconds).items():
                assert not left, f"each run leaves {what} open in its process, {left} at the last one: close them"

    def test_a_run_until_it_is_drained(self, tmp_path: Path) -> None:
        """With until="drained" it also processes what its tasks have written to a topic that they read."""
        with self.log(tmp_path) as log:
            log.create("between", 2)
            log.put("in", ["a", "b", "a"])
            topology = Topology().add_source("in", "in").add_sink("between", "between", "in")
            topology.add_source("again", "between").add_sink("out", "out", "again")
            self._within(lambda: self.run(log.application("twice", topology), until="drained"))
            found = {key: len(values) for key, values in log.read("out").items()}
            expect(found, {"a": 2, "b": 1}, "records that went through a topic that the program writes and reads")

    def test_a_run_goes_on_until_it_is_stopped(self, tmp_path: Path) -> None:
        """What it has written then is committed, with its positions and its state."""
        for number, trigger in enumerate(self.triggers):
            with self.log(tmp_path / str(number)) as log:
                log.put("in", ["a", "b"])
                given = log.application("counts", counting(), commit_interval="20ms")
                with self._started(given, trigger) as running:
                    self._wait(lambda: len(log.read("out")) == 2, running, f"{trigger!r}: what was there is processed")
                    log.put("in", ["a", "c"])
                    self._wait(lambda: len(log.read("out")) == 3, running, f"{trigger!r}: what comes is processed")
                    self._wait(lambda: running.state == "running", running, f"{trigger!r}: all tasks are open")
                    running.stop(self.seconds)
                summary = running.wait(self.seconds)
                expect(summary.stopped_by, "stop", f"{trigger!r}: `stopped_by` of a run that its caller stopped")
                self._check_summary(self.run(log.application("counts", counting())), 0)
                expect(log.read("out"), {"a": ["1", "2"], "b": ["1"], "c": ["1"]}, "each record is processed once")

    def test_a_stop_before_the_start(self, tmp_path: Path) -> None:
        """The event may be set before the run begins: it ends at once, and does not wait for records for ever."""
        with self.log(tmp_path) as log:
            stop = threading.Event()
            stop.set()
            found = self._within(lambda: self.run(log.application("counts", counting()), self.triggers[0], stop=stop))
            expect(found.stopped_by, "stop", "`stopped_by` of a run whose event was set before")

    def test_a_record_that_fails_ends_the_run(self, tmp_path: Path) -> None:
        """`run` raises what the task failed with. Once the program is mended, nothing is lost or doubled."""
        for number, trigger in enumerate(("available_now", *self.triggers)):
            with self.log(tmp_path / str(number)) as log:
                log.put("in", ["a", "b", "a"])
                log.put("in", ["a"], value="bad")
                log.put("in", ["a", "b"])
                given = log.application("counts", counting(), commit_interval="0ms")
                with pytest.raises(ProcessingError, match="bad record") as raised:
                    self._within(lambda given=given, trigger=trigger: self.run(given, trigger))  # type: ignore[misc]
                assert "count" in str(raised.value), f"the error names the node that failed: {raised.value}"
                self.run(log.application("counts", counting(_Careful)))
                found = log.read("out")
                expect(found, {"a": ["1", "2", "3"], "b": ["1", "2"]}, f"{trigger!r}: after an error, and a mended run")

    def test_one_run_of_an_application_at_a_time(self, tmp_path: Path) -> None:
        """A second one is refused, and the first goes on."""
        with self.log(tmp_path) as log:
            given = log.application("counts", counting(), commit_interval="20ms")
            with self._started(given, self.triggers[-1]) as running:
                log.put("in", ["a"])
                self._wait(lambda: log.read("out") == {"a": ["1"]}, running, "a record is processed")
                with pytest.raises(LeaseTakenError, match="counts"):
                    self._within(lambda: self.run(log.application("counts", counting())))
                log.put("in", ["a"])
                self._wait(lambda: log.read("out") == {"a": ["1", "2"]}, running, "the first run goes on")

    def test_it_tells_of_its_start_and_progress(self, tmp_path: Path) -> None:
        """Once of its start; the counts of progress never fall, and the last are those of the summary."""
        with self.log(tmp_path) as log:
            log.put("in", [f"k{number}" for number in range(20)])
            starts: list[int] = []
            news: list[RunProgress] = []
            order = RunOrder(
                Trigger.of("available_now"), news.append, on_start=lambda: starts.append(len(log.read("out")))
            )
            summary = type(self).engine().run(self._given(log.application("counts", counting())), order, **self.options)
            expect(starts, [0], "`note_start` is called once, when tasks begin to run; keys written before each call")
            counts = [each.records_in for each in news]
            expect(counts, sorted(counts), "records that each progress has, which never fall")
            expect(counts[-1:], [20], "records of the last progress")
            expect((summary.records_in, summary.records_out), (20, 20), "records in and out of the summary")

    def test_the_clock_is_the_order_s(self, tmp_path: Path) -> None:
        """Punctuators of the wall clock see it in batches, and not that of the machine."""
        trigger = next((each for each in self.triggers if each != "continuous"), None)
        if trigger is None:
            pytest.skip("the engine runs no batches until it is stopped")
        topology = (
            Topology().add_source("in", "in").add_processor("rings", _Rings, "in").add_sink("out", "out", "rings")
        )
        with self.log(tmp_path) as log:
            log.put("in", ["a"])
            given = log.application("rings", topology, commit_interval="20ms")
            clock = SteadyClock(time.monotonic())
            with self._started(given, trigger, clock=clock) as running:
                self._wait(lambda: log.read("out"), running, "a punctuator of the wall clock fires")
            first = int(log.read("out")["ring"][0])
            assert first < 10_000_000, f"the order's clock began at 1970, and a punctuator was told {first} ms"

    def test_bad_input_is_refused_before_anything_is_done(self, tmp_path: Path) -> None:
        """Unknown options, missing topics, and a program that does not fit what another one saved."""
        with self.log(tmp_path) as log:
            log.put("in", ["a"])
            engine, given = type(self).engine(), self._given(log.application("counts", counting()))
            with pytest.raises(ConfigError, match="no_such_option"):
                engine.run_with(given, "available_now", no_such_option=1)
            with pytest.raises(ConfigError, match="no_such_option"):
                engine.start(given, "available_now", no_such_option=1).stop(self.seconds)
            elsewhere = Topology().add_source("in", "nowhere").add_sink("out", "out", "in")
            with pytest.raises(TopologyError, match="nowhere"):
                self._within(lambda: self.run(log.application("elsewhere", elsewhere)))
            expect(log.read("out"), {}, "a refused run writes nothing")
            self.run(log.application("counts", counting()))
            other = Topology().add_source("in", "in", "more").add_sink("out", "out", "in")
            log.create("more", 5)
            with pytest.raises((TopologyError, IncompatibleStateError)):
                self._within(lambda: self.run(log.application("counts", other)))
            self._check_summary(self.run(log.application("counts", counting())), 0)

    # ------------------------------------------------------------------ for these tests

    @contextmanager
    def log(self, directory: Path) -> Iterator[EngineLog]:
        """Make a log with the topics `in` and `out`; override it where the engine needs one of its own."""
        with EngineLog(directory) as log:
            log.create("in", 2)
            log.create("out", 2)
            yield log

    def run(self, application: Application, trigger: str = "available_now", **order: Any) -> RunSummary:
        """Run an application by the engine."""
        return type(self).engine().run_with(self._given(application), trigger, **order, **self.options)

    def _given(self, application: Application) -> Application:
        return application.with_settings(**self.settings) if self.settings else application

    @contextmanager
    def _started(self, application: Application, trigger: str, **order: Any) -> Iterator[StartedRun]:
        running = type(self).engine().start(self._given(application), trigger, **order, **self.options)
        try:
            yield running
        finally:
            with suppress(Exception):  # of a run that has failed
                running.stop(self.seconds)

    def _wait(self, condition: Callable[[], Any], running: StartedRun, what: str) -> None:
        deadline = time.monotonic() + self.seconds
        while not condition():
            if running.state not in ("starting", "rebalancing", "running"):
                raise AssertionError(f"{what}: the run is {running.state} instead: {running.error}")
            assert time.monotonic() < deadline, f"{what}: not within {self.seconds:g} s"
            time.sleep(0.02)

    def _within(self, call: Callable[[], _Found]) -> _Found:
        """Call it in a thread, so that a call that never returns is a failure. Raises what it raises."""
        found: list[_Found] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                found.append(call())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(self.seconds)
        assert not thread.is_alive(), f"a run must end or raise: it has done neither within {self.seconds:g} s"
        if errors:
            raise errors[0]
        return found[0]

    def _check_summary(self, summary: RunSummary, records: int) -> None:
        found = (summary.records_in, summary.records_out, summary.lag, summary.tasks, summary.stopped_by)
        expect(found, (records, records, 0, 2, None), "a summary's records in and out, lag, tasks and `stopped_by`")


_Open = dict[str, set[Any]]


def _open_now() -> _Open:
    """Return the threads and descriptors of this process; no descriptors where the system does not list them."""
    descriptors = set()
    place = Path("/proc/self/fd")
    for each in place.iterdir() if place.is_dir() else ():
        with suppress(OSError):  # that of the listing itself is closed by now
            descriptors.add((each.name, str(each.readlink())))
    return {"threads": set(threading.enumerate()), "descriptors": descriptors}


def _left_open(before: _Open, between: _Open, seconds: float) -> dict[str, int]:
    """Return how many threads and descriptors the second of two runs has left open, if the first left some, too.

    `before` is the time before the first run, and `between` that between them. What is made once for a process is left
    by one run only. Threads that have been told to end may take some `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        now = _open_now()
        left = {
            what: len(now[what] - between[what]) if (between[what] - before[what]) & now[what] else 0 for what in now
        }
        if not any(left.values()) or time.monotonic() >= deadline:
            return left
        time.sleep(0.005)


class SteadyClock(Clock):
    """A wall clock that begins in 1970 at a reading of the machine's stopwatch; other processes have the same."""

    def __init__(self, began: float) -> None:
        self.began = began

    def now_ms(self) -> int:
        """Return the milliseconds since its beginning."""
        return int((time.monotonic() - self.began) * 1000)


class EngineLog:
    """A log of this machine, with what tests do to it: topics, records in, records out."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._settings: dict[str, Any] = {"data_dir": str(directory), "log": "local:log"}
        self._log = open_log(Settings(**self._settings))
        self._timestamps = count(1)

    def __enter__(self) -> EngineLog:
        return self

    def __exit__(self, *error: object) -> None:
        self._log.close()

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self._log.create_topic(topic, partitions)

    def application(self, application_id: str, topology: Topology, **settings: Any) -> Application:
        """Return an application over this log, whose keys and values are texts."""
        given = {**self._settings, "key_serde": "str", "value_serde": "str", **settings}
        return Application(application_id, topology, **given)

    def put(self, topic: str, keys: Sequence[str], value: str = "v") -> None:
        """Append a record for each key."""
        names: list[bytes | None] = [key.encode() for key in keys]
        self._log.append(
            OutputBatch(topic, names, [value.encode()] * len(keys), [next(self._timestamps) for _ in keys])
        )

    def read(self, topic: str) -> dict[str, list[str]]:
        """Return the values of each key that a topic has, in their order."""
        found: dict[str, list[str]] = {}
        partitions = [TopicPartition(topic, number) for number in range(self._log.topics()[topic].partitions)]
        ends = self._log.end_offsets(partitions)
        for partition, at in self._log.start_offsets(partitions).items():
            while at < ends[partition]:
                for batch in self._log.fetch(partition, at, ends[partition], 1 << 20):
                    at = batch.next_offset
                    for key, value in zip(batch.keys, batch.values, strict=True):
                        found.setdefault((key or b"").decode(), []).append((value or b"").decode())
        return found
