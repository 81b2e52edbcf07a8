"""What metrics cost: programs on the embedded engine, their metrics scraped each second, beside the same without."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from .result import Table

_RECORDS = 1_000_000
_KEYS = 100_000
_CHUNK = 10_000
_COUNTED = re.compile(r"((self\.)?calls\.)?(gets|puts|reads)|self\.reads|sent|(queue\.)?counts\[.*\]")
"""What the statements add to that are left out."""
_LEAST = 5
"""How many such statements a program without stores has at least."""
_CASES = ("count", "windowed-count", "dsl-chain", "dsl-count")
_SMALL = 1 << 30
"""Bytes of address space for a store or a log: valgrind gives a process less than they take otherwise."""
_FEW_RECORDS = 50_000, 350_000
"""Those of the two runs whose instructions are counted."""
_TIMES = 2
"""How often a pair of processes runs its program by turns, after the first time; the best one of each side counts."""
_ROOT = str(Path(__file__).parents[1])
_ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0"}
"""The same dicts and sets on both sides."""
_VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def metrics_instructions(cases: tuple[str, ...] = _CASES) -> Table:
    """Count the instructions of a record with valgrind: they repeat to about a percent, where times differ by several.

    Nothing is scraped. Those of a run with fewer records are taken away, and with them those of the start.
    """
    if shutil.which("valgrind") is None:
        raise SystemExit("metrics-instructions needs valgrind, which counts instructions: install it")
    rows = []
    for case in cases:
        with ThreadPoolExecutor(2) as pool:
            pairs = [pool.map(partial(_instructions, side, case), _FEW_RECORDS) for side in ("on", "off")]
            on, off = ((many - few) / (_FEW_RECORDS[1] - _FEW_RECORDS[0]) for few, many in pairs)
        rows.append({"name": "metrics-instructions", "program": case, "on": round(on), "off": round(off),
                     "cost": f"{on / off - 1:.1%}"})  # fmt: skip
        print(rows[-1], file=sys.stderr)
    return Table("metrics-instructions: instructions of a record", rows)


def _instructions(side: str, case: str, records: int) -> int:
    with TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        # It takes forty times as long: by time there would be as many commits more.
        settings = {"log": f"local:{directory}/log?map_size={_SMALL}", "commit_interval": "900s"}
        subprocess.run(_command("fill", directory, case, records, settings), check=True)
        process = subprocess.run(
            [*_VALGRIND, *_command(side, directory, case, records, settings)], input="\n", text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_ENVIRONMENT,
        )  # fmt: skip
        told = re.search(r"I +refs: +([\d,]+)", process.stderr)
        if process.returncode or told is None:
            raise RuntimeError(f"valgrind ended with {process.returncode}:\n{process.stderr[-3000:]}")
        return int(told[1].replace(",", ""))


def metrics_cost(rounds: int = 5, cases: tuple[str, ...] = _CASES, log: str = "local") -> Table:
    """Run each program in so many pairs of processes, by turns in one that counts and in one that does not.

    Two processes that run the same differ by some percent. `best`: the cost by the best process of each side; `median`:
    of the pairs. `log="kafka"`: from topic to topic of a broker, whose own CPU is left out.
    """
    rows = []
    for case in cases:
        with TemporaryDirectory(ignore_cleanup_errors=True) as directory, _log(log) as settings:
            subprocess.run(_command("fill", directory, case, _RECORDS, settings), check=True)
            found = []
            for _ in range(rounds):
                with _side("on", directory, case, settings) as on, _side("off", directory, case, settings) as off:
                    turns = [_turn(on, off, number) for number in range(_TIMES + 1)][1:]
                found.append([min(each) for each in zip(*turns, strict=True)])
        costs = [one / other - 1 for one, other in found]
        best_on, best_off = (min(each) for each in zip(*found, strict=True))
        rows.append({"name": "metrics-cost", "program": case, "log": log, "pairs": rounds,
                     "us_on": round(best_on, 3), "us_off": round(best_off, 3), "best": f"{best_on / best_off - 1:.1%}",
                     "median": f"{statistics.median(costs):.1%}",
                     "range": f"{min(costs):.1%} to {max(costs):.1%}"})  # fmt: skip
        print(rows[-1], file=sys.stderr)
    return Table("metrics-cost: CPU of a record", rows)


@contextmanager
def _log(log: str) -> Iterator[dict[str, Any]]:
    """Yield the settings of the log, for the block."""
    if log == "local":
        yield {}
    else:
        from penstock.plugins.testing.kafka_broker import KafkaBroker  # see `_application`

        with KafkaBroker(heap="1g", jvm_options=()) as broker:
            yield {"log": f"kafka:{broker.bootstrap}", "changelog": "topic:"}


def _command(what: str, directory: str, case: str, records: int, settings: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", "bench.metrics_cost", what, directory, case, str(records), json.dumps(settings)]


@contextmanager
def _side(side: str, directory: str, case: str, settings: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    ended = threading.Event()
    if side == "on":
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        settings = {**settings, "metrics_port": port}
        threading.Thread(target=_scrape, args=(port, ended), daemon=True).start()
    process = subprocess.Popen(
        _command(side, directory, case, _RECORDS, settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=_ENVIRONMENT,
    )  # fmt: skip
    with process:
        yield process
        ended.set()
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
    from penstock.plugins.engine.task.logged_task import LoggedTask
    from penstock.plugins.engine.task.report import Histogram
    from penstock.stores.commit_buffer import CommitBuffer

    setattr(Histogram, "observe", lambda *given: None)  # noqa: B010
    setattr(LoggedTask, "_note_processed", lambda *given: None)  # noqa: B010
    setattr(CommitBuffer, "count", lambda *given: None)  # noqa: B010


def _application(directory: str, case: str, settings: Mapping[str, Any]) -> Any:
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


def _fill(directory: str, case: str, records: int, settings: Mapping[str, Any]) -> None:
    from penstock import OutputBatch
    from penstock.plugins.engine.task.locations import open_log

    from .data import zipf_keys
    from .programs import WINDOW_MS

    with closing(open_log(_application(directory, case, settings).settings)) as log:
        for topic in ("bench-in", "bench-out"):
            log.create_topic(topic, 1)
        keys = zipf_keys(records, _KEYS)
        for first in range(0, records, _CHUNK):
            times = [4 * WINDOW_MS * first // records] * _CHUNK
            log.append(OutputBatch("bench-in", [*keys[first : first + _CHUNK]], [b"v"] * _CHUNK, times))


def _serve(directory: str, case: str, records: int, settings: Mapping[str, Any], *, counts: bool) -> None:
    """For each line that comes in, process all records with a new application; print CPU microseconds a record."""
    _compile_here(counts=counts)
    from penstock import run
    from penstock.stores.lmdb import LmdbBackend

    if "map_size" in settings.get("log", ""):
        (LmdbBackend.__init__.__kwdefaults__ or {})["map_size"] = _SMALL  # address space only
    for _ in sys.stdin:
        application = _application(directory, case, settings)
        before = time.process_time()
        run(application)
        took = time.process_time() - before
        if not counts and _LeaveOut.left_out < _LEAST:
            raise RuntimeError(f"expected to leave out {_LEAST} statements that count, found {_LeaveOut.left_out}")
        print(took / records * 1e6, flush=True)


def _scrape(port: int, ended: threading.Event) -> None:
    while not ended.wait(1.0):
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as found:
            found.read()


def main(what: str, directory: str, case: str, records: str, settings: str) -> None:
    """Fill the topic, or serve a side of a program, "on" or "off"."""
    if what == "fill":
        _fill(directory, case, int(records), json.loads(settings))
    else:
        _serve(directory, case, int(records), json.loads(settings), counts=what == "on")


if __name__ == "__main__":
    main(*sys.argv[1:])
