"""The first output of the embedded engine: from the start of its process to the first record that can be read."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from penstock import OutputBatch, Settings, TopicPartition
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .result import Result

ALLOWED = {"local": 1.0, "kafka": 2.0}
ALLOWED_MB = 150.0
PROGRAM = """
from penstock import Application
from penstock.dsl import StreamsBuilder, count_of, sum_of

builder = StreamsBuilder()
orders = builder.stream("orders", value_serde="json").filter(lambda order: order["paid"])
by_product = orders.group_by(lambda order: order["product"], name="by-product")
by_product.agg("sales", number=count_of(), total=sum_of("price")).to_stream().to("sales", value_serde="json")
application = Application("orders", builder, engine="embedded")
"""
PARTITIONS = 2


def first_output(rounds: int = 10) -> Result:
    """Start the program of README so often on each log; `notes` has the medians, and the most memory."""
    with KafkaBroker() as broker:
        runs = {
            kind: [_run(location) for _ in range(rounds)]
            for kind, location in {"local": "local:log", "kafka": f"kafka:{broker.bootstrap}"}.items()
        }
    medians = {kind: statistics.median(seconds for seconds, _ in each) for kind, each in runs.items()}
    memory_mb = max(megabytes for each in runs.values() for _, megabytes in each)
    return Result(
        "first-output",
        1 / medians["local"],
        0.0,
        memory_mb,
        medians,
        notes={
            **{f"allowed, {kind} log": f"{seconds:g} s" for kind, seconds in ALLOWED.items()},
            "memory allowed": f"{ALLOWED_MB:g} MB (PSS of all its processes)",
            "runs": "; ".join(f"{kind}: {', '.join(f'{one:.2f}' for one, _ in each)}" for kind, each in runs.items()),
        },
    )


def _run(location: str) -> tuple[float, float]:
    """Return the seconds from starting `penstock run` to the first output, and the memory (PSS, MB) at that moment."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        name = Path(directory).name
        Path(directory, "app.py").write_text(
            PROGRAM.replace('"orders"', f'"{name}-orders"').replace('"sales", value', f'"{name}-sales", value')
        )
        log = open_log(Settings(data_dir=f"{directory}/.penstock", log=location))
        for topic in ("orders", "sales"):
            log.create_topic(f"{name}-{topic}", PARTITIONS)
        order = b'{"product": "tea", "price": 4, "paid": true}'
        log.append(OutputBatch(f"{name}-orders", [None] * 100, [order] * 100, [1] * 100))
        outputs = [TopicPartition(f"{name}-sales", number) for number in range(PARTITIONS)]
        penstock = str(Path(sys.executable).with_name("penstock"))
        command = [penstock, "run", "app:application", "--trigger", "continuous", "--quiet"]
        memory = 0
        began = time.perf_counter()
        with subprocess.Popen(command, cwd=directory, env={**os.environ, "PENSTOCK_LOG": location}) as process:
            own = psutil.Process(process.pid)
            while not any(log.end_offsets(outputs).values()):
                assert process.poll() is None, "penstock run ended without a record"
                time.sleep(0.01)
            seconds = time.perf_counter() - began
            for each in (own, *own.children(recursive=True)):
                memory += each.memory_full_info().pss
            process.terminate()
            process.wait(30)
        log.close()
        return seconds, memory / 1e6
