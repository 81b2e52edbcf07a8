"""What metrics cost: a count on the embedded engine, its metrics scraped each second, beside one without counts."""

from __future__ import annotations

import ast
import json
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from importlib.machinery import SourceFileLoader
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from .result import Table

_RECORDS = 1_000_000
_KEYS = 100_000
_CHUNK = 10_000
_COUNTED = re.compile(r"(self\.)?calls\.(gets|puts|reads)|(queue\.)?counts\[.*\]")
"""What the statements add to that are left out."""
_LEAST = 15
"""How many such statements there are at least."""


def metrics_cost(rounds: int = 7) -> Table:
    """Measure each side in a process of its own, in turns; `rounds` of both. `cost`: by the best round of each."""
    found: dict[str, list[float]] = {"on": [], "off": []}
    with TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        _command("fill", directory)
        for number in range(rounds):
            for side in list(found)[:: 1 if number % 2 else -1]:
                found[side].append(_command(side, directory))
    best = {side: min(each) for side, each in found.items()}
    row = {f"cpu_s_per_million_{side}": ", ".join(f"{one:.3f}" for one in each) for side, each in found.items()}
    cost = f"{best['on'] / best['off'] - 1:.1%}"
    return Table("metrics-cost", [{"name": "metrics-cost", "rounds": rounds, **row, "cost": cost}])


def _command(what: str, directory: str) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "bench.metrics_cost", what, directory], check=True, stdout=subprocess.PIPE
    )
    return float(json.loads(done.stdout))


class _LeaveOut(ast.NodeTransformer):
    """Leaves statements out of the source that count calls and records."""

    left_out = 0
    """How many it has left out in this process."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if not _COUNTED.fullmatch(ast.unparse(node.target)):
            return node
        _LeaveOut.left_out += 1
        return ast.copy_location(ast.Pass(), node)


def _count_nothing(directory: str) -> None:
    """Let this process import penstock without its counting."""

    def source_to_code(self: Any, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree = ast.parse(data)
        return compile(_LeaveOut().visit(tree), path, "exec", dont_inherit=True, optimize=_optimize)

    sys.pycache_prefix = f"{directory}/code"  # no code that was compiled with it
    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign]
    from penstock.plugins.runtime.histogram import Histogram
    from penstock.plugins.runtime.logged_task import LoggedTask
    from penstock.store.calls import StoreCalls

    setattr(Histogram, "observe", lambda *given: None)  # noqa: B010
    setattr(LoggedTask, "_note_processed", lambda *given: None)  # noqa: B010
    setattr(StoreCalls, "counting", lambda self, read, seconds: read)  # noqa: B010


def _application(directory: str, name: str, **settings: Any) -> Any:
    # Imported here, as in all functions below: the process decides first whether it counts.
    from penstock import Application

    from .programs import count_topology

    return Application(name, count_topology(), engine="embedded", processes=0, data_dir=directory, **settings)


def _fill(directory: str) -> None:
    from penstock import OutputBatch
    from penstock.plugins.runtime.locations import open_log

    from .data import zipf_keys

    with closing(open_log(_application(directory, "fill").settings)) as log:
        for topic in ("bench-in", "bench-out"):
            log.create_topic(topic, 1)
        keys = zipf_keys(_RECORDS, _KEYS)
        for first in range(0, _RECORDS, _CHUNK):
            log.append(OutputBatch("bench-in", [*keys[first : first + _CHUNK]], [b"v"] * _CHUNK, [first] * _CHUNK))


def _run(directory: str, *, counts: bool) -> float:
    """Process all records, with an application of its own; return CPU seconds a million of records."""
    settings: dict[str, Any] = {}
    if counts:
        with socket.create_server(("127.0.0.1", 0)) as free:
            settings["metrics_port"] = free.getsockname()[1]
    else:
        _count_nothing(directory)
    from penstock import run

    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(1.0):
            with (
                suppress(OSError),
                urlopen(f"http://127.0.0.1:{settings['metrics_port']}/metrics", timeout=10) as found,
            ):
                found.read()

    thread = threading.Thread(target=scrape)
    if counts:
        thread.start()
    took = 0.0
    for _ in range(2):  # the first one imports, and is not counted
        application = _application(directory, f"bench-{time.time_ns()}", **settings)
        before = time.process_time()
        run(application)
        took = time.process_time() - before
    ended.set()
    if counts:
        thread.join()
    elif _LeaveOut.left_out < _LEAST:
        raise RuntimeError(f"expected to leave out {_LEAST} statements that count, found {_LeaveOut.left_out}")
    return took / _RECORDS * 1e6


def main(what: str, directory: str) -> None:
    """Fill the topic, or measure a side, "on" or "off"; print CPU seconds a million of records."""
    if what == "fill":
        _fill(directory)
    print(0 if what == "fill" else json.dumps(_run(directory, counts=what == "on")))


if __name__ == "__main__":
    main(*sys.argv[1:])
