"""Whatever the keys, the numbers of partitions and the moment: outputs are those of a run that was never resharded."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Application, Topology, key_value_store, window_store
from penstock.plugins.state.transfer.reshard import accept

from . import runs
from .programs import Count
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
