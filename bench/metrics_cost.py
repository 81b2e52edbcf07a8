"""What metrics cost: programs on the embedded engine, their metrics scraped each second, beside the same without."""

from __future__ import annotations

import ast
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from .result import Table

_RECORDS = 250_000
_KEYS = 100_000
_CHUNK = 10_000
_COUNTED = re.compile(r"((self\.)?calls\.)?(gets|puts|reads)|self\.reads|sent|(queue\.)?counts\[.*\]")
"""What the statements add to that are left out."""
_LEAST = 5
"""How many such statements a program without stores has at least."""
_CASES = ("count", "windowed-count", "dsl-chain", "dsl-count")
_TIMES = 3
"""How often a pair of processes runs its program by turns, after the first time; the best one of each side counts."""
_ROOT = str(Path(__file__).parents[1])
_COMMAND = (sys.executable, "-m", "bench.metrics_cost")


def metrics_cost(rounds: int = 5, cases: tuple[str, ...] = _CASES) -> Table:
    """Run each program in so many pairs of processes, by turns in one that counts and in one that does not.

    Two processes that run the same differ by some percent. `best`: the cost by the best process of each side; `median`:
    of the pairs.
    """
    rows = []
    with TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        subprocess.run([*_COMMAND, "fill", directory, "count"], check=True)
        for case in cases:
            found = []
            for _ in range(rounds):
                with _side("on", directory, case) as on, _side("off", directory, case) as off:
                    turns = [_turn(on, off, number) for number in range(_TIMES + 1)][1:]
                found.append([min(each) for each in zip(*turns, strict=True)])
            costs = [one / other - 1 for one, other in found]
            best_on, best_off = (min(each) for each in zip(*found, strict=True))
            rows.append({"name": "metrics-cost", "program": case, "pairs": rounds, "us_on": round(best_on, 3),
                         "us_off": round(best_off, 3), "best": f"{best_on / best_off - 1:.1%}",
                         "median": f"{statistics.median(costs):.1%}",
                         "range": f"{min(costs):.1%} to {max(costs):.1%}"})  # fmt: skip
            print(rows[-1], file=sys.stderr)
    return Table("metrics-cost: CPU of a record", rows)


@contextmanager
def _side(side: str, directory: str, case: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*_COMMAND, side, directory, case], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},  # the same dicts and sets on both sides
    )  # fmt: skip
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _turn(on: subprocess.Popen[str], off: subprocess.Popen[str], number: int) -> tuple[float, float]:
    """Return the CPU microseconds of a record on each side."""
    found = {}
    for each in (on, off) if number % 2 else (off, on):
        assert each.stdin is not None and each.stdout is not None
        print(file=each.stdin, flush=True)
        found[each.pid] = float(each.stdout.readline())
    return found[on.pid], found[off.pid]


class _LeaveOut(ast.NodeTransformer):
    """Leaves statements out of the source that count calls and records."""

    left_out = 0
    """How many it has left out in this process."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if not _COUNTED.fullmatch(ast.unparse(node.target)):
            return node
        _LeaveOut.left_out += 1
        return ast.copy_location(ast.Pass(), node)


def _compile_here(*, counts: bool) -> None:
    """Let this process compile what it imports, on both sides alike; penstock without its counting, unless `counts`."""

    def source_to_code(self: Any, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree: ast.Module = ast.parse(data)
        if not counts and str(path).startswith(_ROOT) and "site-packages" not in str(path):
            tree = _LeaveOut().visit(tree)
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    sys.pycache_prefix, sys.dont_write_bytecode = os.devnull, True  # no code that was compiled before
    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign]
    if counts:
        return
    from penstock.plugins.runtime.histogram import Histogram
    from penstock.plugins.runtime.logged_task import LoggedTask
    from penstock.stores.commit_buffer import CommitBuffer

    setattr(Histogram, "observe", lambda *given: None)  # noqa: B010
    setattr(LoggedTask, "_note_processed", lambda *given: None)  # noqa: B010
    setattr(CommitBuffer, "count", lambda *given: None)  # noqa: B010


def _application(directory: str, case: str, **settings: Any) -> Any:
    # Imported here, as in all functions below: the process decides first whether it counts.
    from penstock import Application

    from . import dsl, programs

    program = {
        "count": programs.count_topology,
        "windowed-count": programs.windowed_count_topology,
        "dsl-chain": dsl.chain_topology,
        "dsl-count": dsl.dsl_topology,
    }[case]()
    name = f"bench-{time.time_ns()}"
    return Application(name, program, engine="embedded", processes=0, data_dir=directory, **settings)


def _fill(directory: str) -> None:
    from penstock import OutputBatch
    from penstock.plugins.runtime.locations import open_log

    from .data import zipf_keys
    from .programs import WINDOW_MS

    with closing(open_log(_application(directory, "count").settings)) as log:
        for topic in ("bench-in", "bench-out"):
            log.create_topic(topic, 1)
        keys = zipf_keys(_RECORDS, _KEYS)
        for first in range(0, _RECORDS, _CHUNK):
            times = [4 * WINDOW_MS * first // _RECORDS] * _CHUNK
            log.append(OutputBatch("bench-in", [*keys[first : first + _CHUNK]], [b"v"] * _CHUNK, times))


def _serve(directory: str, case: str, *, counts: bool) -> None:
    """For each line that comes in, process all records with a new application; print CPU microseconds a record."""
    settings: dict[str, Any] = {}
    if counts:
        with socket.create_server(("127.0.0.1", 0)) as free:
            settings["metrics_port"] = free.getsockname()[1]
        threading.Thread(target=_scrape, args=(settings["metrics_port"],), daemon=True).start()
    _compile_here(counts=counts)
    from penstock import run

    for _ in sys.stdin:
        application = _application(directory, case, **settings)
        before = time.process_time()
        run(application)
        took = time.process_time() - before
        if not counts and _LeaveOut.left_out < _LEAST:
            raise RuntimeError(f"expected to leave out {_LEAST} statements that count, found {_LeaveOut.left_out}")
        print(took / _RECORDS * 1e6, flush=True)


def _scrape(port: int) -> None:
    while True:
        time.sleep(1.0)
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as found:
            found.read()


def main(what: str, directory: str, case: str) -> None:
    """Fill the topic, or serve a side of a program, "on" or "off"."""
    if what == "fill":
        _fill(directory)
    else:
        _serve(directory, case, counts=what == "on")


if __name__ == "__main__":
    main(*sys.argv[1:])
