"""Topologies that the tests run. This module is not installed: workers get it with the application."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Failure,
    Processor,
    Record,
    RetryAfter,
    Topology,
    key_value_store,
)

log = logging.getLogger("tests.apps")


def pipe() -> Topology:
    return Topology().add_source("in", "in").add_sink("out", "out", "in")


class Count(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(str(count)))


def count(supplier: Any = Count, source: str = "in", sink: str = "out", **options: Any) -> Topology:
    return (
        Topology()
        .add_source("in", source)
        .add_processor("count", supplier, "in", stores=["counts"], **options)
        .add_store(key_value_store("counts", key_serde="str"))
        .add_sink("out", sink, "count")
    )


class ReadFile(Processor):
    """Forwards the content of a file that was added to the Spark application."""

    def __init__(self, name: str) -> None:
        self.name = name

    def process(self, record: Record) -> None:
        from pyspark import SparkFiles

        self.context.forward(record.with_value(Path(SparkFiles.get(self.name)).read_text()))


def read_file(name: str) -> Topology:
    topology = Topology().add_source("in", "in").add_processor("read", lambda: ReadFile(name), "in")
    return topology.add_sink("out", "out", "read")


class Fill(Processor):
    def process(self, record: Record) -> None:
        self.context.get_store("table").put(record.key, record.value)


class LookUp(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(str(self.context.get_store("table").get(record.key))))


def look_up(fill: Any = Fill) -> Topology:
    """Each record gets its key's value in a global store."""
    topology = Topology().add_global_store(key_value_store("table", key_serde="str"), "rows", "table", "fill", fill)
    return topology.add_source("in", "in").add_processor("look-up", LookUp, "in").add_sink("out", "out", "look-up")


class ByValue(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_key(record.value))


def count_by_value() -> Topology:
    """Two sub-topologies with a repartition topic between them."""
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("rekey", ByValue, "in")
        .add_repartition("by-value", "rekey", partitions=3)
        .add_processor("count", Count, "by-value", stores=["counts"])
        .add_store(key_value_store("counts", key_serde="str"))
        .add_sink("out", "out", "count")
    )


class Ticks(Processor):
    """Forwards a record at each tick of either clock: key is the clock, value the task's stream time."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("10s", self.wall, WALL_CLOCK_TIME, start=0)
        context.schedule("1s", self.stream, STREAM_TIME)

    def process(self, record: Record) -> None:
        return None

    def wall(self, now: int) -> None:
        self.context.forward(Record("wall", str(self.context.current_stream_time_ms()), now))

    def stream(self, now: int) -> None:
        self.context.forward(Record("stream", str(self.context.current_stream_time_ms()), now))


def ticks() -> Topology:
    return Topology().add_source("in", "in").add_processor("ticks", Ticks, "in").add_sink("out", "out", "ticks")


class Later(Processor):
    """Sends on each key when stream time is 5 ms later, and again 300 ms later by the wall clock."""

    def process(self, record: Record) -> None:
        self.context.timer(record.key, record.timestamp + 5, STREAM_TIME)

    def on_timer(self, key: Any, at: int) -> None:
        now = self.context.current_system_time_ms()
        if at < 10**9:  # the time of the records is long ago
            self.context.timer(key, now + 300, WALL_CLOCK_TIME)
        self.context.forward(Record(key, "stream" if at < 10**9 else "wall", at))


def later() -> Topology:
    return Topology().add_source("in", "in").add_processor("later", Later, "in").add_sink("out", "out", "later")


class SecondTicks(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("200ms", lambda now: context.forward(Record("tick", "", now)), WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        return None


def real_ticks() -> Topology:
    return Topology().add_source("in", "in").add_processor("ticks", SecondTicks, "in").add_sink("out", "out", "ticks")


class Poisoned(Count):
    def process(self, record: Record) -> None:
        if record.value == "poison":
            raise ValueError("cannot stand this")
        super().process(record)


class Warns(Count):
    def process(self, record: Record) -> None:
        if record.value == "strange":
            log.warning("strange record %s", record.key)
        super().process(record)


class DiesOnce(Count):
    """Kills its worker process at a record with the value "die", the first time."""

    def __init__(self, flag: str) -> None:
        self.flag = Path(flag)

    def process(self, record: Record) -> None:
        if record.value == "die" and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().process(record)


class Waits(Count):
    """At a record with the value "wait" it waits for a file."""

    def __init__(self, flag: str) -> None:
        self.flag = Path(flag)

    def process(self, record: Record) -> None:
        while record.value == "wait" and not self.flag.exists():
            time.sleep(0.01)
        super().process(record)


class Flaky(Count):
    """Fails at a record with the value "flaky" while a file is there: as often as it says, or always if it is empty."""

    def __init__(self, flag: str) -> None:
        self.flag = Path(flag)

    def process(self, record: Record) -> None:
        if record.value == "flaky" and (left := self.flag.read_text()) != "0":
            if left:
                self.flag.write_text(str(int(left) - 1))
            raise ValueError("not yet")
        super().process(record)


def again_in_an_hour(failure: Failure) -> RetryAfter:
    return RetryAfter("1h")


def again_at_once(failure: Failure) -> RetryAfter:
    return RetryAfter("20ms")


class FreezesOnce(Count):
    """Stops its worker process at a record with the value "freeze", the first time, and says which it is."""

    def __init__(self, flag: str) -> None:
        self.flag = Path(flag)

    def process(self, record: Record) -> None:
        if record.value == "freeze" and not self.flag.exists():
            # The kernel hangs up a process group that stands still when its last parent in the session ends.
            os.setsid()
            self.flag.write_text(str(os.getpid()))
            # Sent to this thread: sent to the process, another thread may take it, and this one goes on for a while.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        super().process(record)


class LingersOnce(Count):
    """Waits at a record with the value "linger", the first time, for a file that says to go on; says which process it
    is."""

    def __init__(self, flag: str) -> None:
        self.flag, self.release, self.awake = Path(flag), Path(flag + ".release"), Path(flag + ".awake")

    def process(self, record: Record) -> None:
        if record.value == "linger" and not self.flag.exists():
            self.flag.write_text(str(os.getpid()))
            deadline = time.monotonic() + 120
            while not self.release.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.awake.touch()
        super().process(record)
