"""Drivers in processes of their own, and a zombie that wakes up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from penstock.hooks import registry
from penstock.plugins.spark import run

from ..processes import python
from ..rotation import by_turns
from ..waiting import wait_until
from . import apps
from .surroundings import Surroundings
from .test_runner import counts, records

pytestmark = pytest.mark.spark


def driver(
    surroundings: Surroundings, topology: str, trigger: str, *options: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start a driver that ends with the block."""
    return python("tests.spark.driver", surroundings.directory, topology, trigger, *options)


def summary_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    return summary


def state_of(process: int) -> str:
    """A process's letter in ps; Z also for one that is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


@by_turns(3, 4)
def test_a_worker_that_froze_and_wakes_after_its_successor_changes_nothing(
    surroundings: Surroundings, spark: Any, tmp_path: Path
) -> None:
    surroundings.create(**{"in": 1, "out": 1})
    surroundings.put("in", [*records(50), ("k1", "freeze", 50), *records(80)[51:]])
    flag = tmp_path / "frozen"
    freezing = f"count(FreezesOnce, flag={str(flag)!r})"
    with driver(surroundings, freezing, "available_now") as process:
        wait_until(lambda: (flag.exists() and flag.read_text()) or process.poll() is not None, "a record froze it", 240)
        assert process.poll() is None, process.communicate()
        zombie = int(flag.read_text())
        wait_until(lambda: state_of(zombie) == "T", "the worker stands still", 120)
    try:
        summary = run(surroundings.application("app", apps.count(apps.FreezesOnce, flag=str(flag))), session=spark)
        assert summary.records_in == 80
        before = surroundings.everything("app", "in", "out"), rows_of_store(surroundings)
        before_it_woke = changelog_bytes(surroundings)
    finally:
        os.kill(zombie, signal.SIGCONT)
    wait_until(lambda: state_of(zombie) == "Z", "the zombie has found out", 120)
    assert changelog_bytes(surroundings) == before_it_woke, "its successor wrote its local state, so it writes no delta"
    assert (surroundings.everything("app", "in", "out"), rows_of_store(surroundings)) == before
    assert surroundings.values_by_key("out") == counts(80)


def changelog_bytes(surroundings: Surroundings) -> int:
    return sum(path.stat().st_size for path in (surroundings.directory / "changelog").rglob("*.delta"))


def rows_of_store(surroundings: Surroundings) -> Any:
    """The version and content of the store `counts` of task 0_0, as another process reads them."""
    directory = max((surroundings.directory / "state" / "app" / "0_0" / "lmdb").iterdir())
    backend = registry().load("store backend", "lmdb")(directory, ["counts"], read_only=True)
    try:
        return backend.version(), list(backend.range("counts"))
    finally:
        backend.close()
