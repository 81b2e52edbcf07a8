"""Whatever the keys, the numbers of partitions and the moment: outputs are those of a run that was never resharded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    Application,
    DeadLetter,
    IncompatibleStateError,
    OutputBatch,
    Record,
    Topology,
    default_partitioner,
    key_value_store,
    window_store,
)
from penstock.plugins.engine.program.dead_letters import Selection, replay
from penstock.plugins.engine.program.letter_targets import ApplicationTargets
from penstock.plugins.engine.program.stored_id import check_sources
from penstock.plugins.state.transfer.reshard import accept

from . import runs
from .programs import Append, Count
from .runs import lease, new_log, outputs, produce, resharded, run

COUNTS = st.lists(st.integers(1, 5), min_size=2, max_size=3)
BATCHES = st.lists(st.lists(st.text(max_size=4), max_size=6), min_size=3, max_size=3)


def counting(directory: Path, topic: str) -> Application:
    stores = [key_value_store("totals"), window_store("windows", retention="1h", window_size="10ms")]
    topology = Topology().add_source("in", topic).add_processor("count", Count, "in", stores=stores)
    return Application("shop", topology.add_sink("out", "out", "count"), **runs.settings(directory, "topic:"))


@settings(max_examples=15, deadline=None)
@given(counts=COUNTS, batches=BATCHES, processed=st.integers(0, 6))
def test_outputs_are_the_same(counts: list[int], batches: list[list[str]], processed: int) -> None:
    """Of each batch some records are processed before the next change, the others by it."""
    with TemporaryDirectory() as directory:
        log = new_log({f"in-{number}": count for number, count in enumerate(counts)} | {"out": 1})
        always = new_log({"in": 1, "out": 1})
        time = 0
        for number, keys in zip(range(len(counts)), batches, strict=False):
            app = counting(Path(directory), f"in-{number}")
            if number:
                resharded(app, log, counts[number], sources={f"in-{number - 1}": f"in-{number}"})
                accept(app, log, lease(app, log))
            rows = [(key, f"{time + at}", time + at) for at, key in enumerate(keys)]
            time += len(rows)
            produce(log, f"in-{number}", rows[:processed])
            run(app, log)
            produce(log, f"in-{number}", rows[processed:])
            produce(always, "in", rows)
        run(app, log)
        run(counting(Path(directory) / "always", "in"), always)
        assert outputs(log) == outputs(always)


class Fails(Append):
    """Fails for a value that is bad."""

    def process(self, record: Record) -> None:
        if "bad" in record.value:
            raise ValueError(record.value)
        super().process(record)


def appending(directory: Path, topic: str, keep: type[Append]) -> Application:
    topology = Topology().add_source("in", topic).add_processor("keep", keep, "in", stores=[key_value_store("kept")])
    topology.add_sink("out", "out", "keep")
    handler = DeadLetter("dead")
    return Application("shop", topology, processing_handler=handler, **runs.settings(directory, "topic:"))


def by_length(topic: str, record: Record, count: int) -> int:
    return len(record.key) % count


@settings(max_examples=15, deadline=None)
@given(counts=COUNTS, batches=BATCHES, bad=st.sets(st.integers(0, 17)), has_partitioner=st.booleans())
def test_each_letter_counts_where_the_state_of_its_key_is(
    counts: list[int], batches: list[list[str]], bad: set[int], has_partitioner: bool
) -> None:
    """Whichever of the topics it was read from, and however its writers choose partitions; old programs are refused."""
    partitioners = {"in-0": by_length} if has_partitioner else {}
    with TemporaryDirectory() as directory:
        log = new_log({f"in-{number}": count for number, count in enumerate(counts)} | {"out": 1, "dead": 1})
        apps = [appending(Path(directory), f"in-{number}", Fails) for number in range(len(counts))]
        written: dict[bytes, list[str]] = {}
        for number, keys in zip(range(len(counts)), batches, strict=False):
            topic = f"in-{number}"
            if number:
                given = {f"in-{number - 1}": each for each in partitioners.values()}
                resharded(apps[number], log, counts[number], sources={f"in-{number - 1}": topic}, partitioners=given)
                accept(apps[number], log, lease(apps[number], log))
            for old in apps[:number]:
                with pytest.raises(IncompatibleStateError):
                    check_sources(old, log)
            for at, key in enumerate(keys, sum(map(len, batches[:number]))):
                data, value = key.encode(), f"{at}bad," if at in bad else f"{at},"
                count = counts[number]
                place = len(key) % count if has_partitioner else default_partitioner(data, count)
                chosen: list[Sequence[int] | None] = [[place]]
                log.append(OutputBatch(topic, [data], [value.encode()], [at], partitions=chosen))
                written.setdefault(data, []).append(value)
            run(apps[number], log)
        mended = appending(Path(directory), topic, Append)
        done = replay(log, "dead", Selection(), targets=ApplicationTargets(mended, log, partitioners))
        assert done.held == {}
        run(mended, log)
        last = {key: (values[-1][0] or b"").decode().split(",")[:-1] for key, values in outputs(log).items()}
        assert {key: sorted(values) for key, values in last.items()} == {
            key: sorted(value[:-1] for value in values) for key, values in written.items()
        }
