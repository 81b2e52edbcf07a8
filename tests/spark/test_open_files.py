"""Whether the limit of open files is enough for an application's tasks, said before Spark starts."""

from __future__ import annotations

import gc
import os
import resource
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from penstock import RuntimeUnavailableError
from penstock.plugins.engine.program.preparation import check_open_files, open_files, prepare
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.spark import run
from penstock.plugins.spark.sessions import local_cores
from penstock.plugins.testing.contracts.child import answer, forked

from ..kafka.shop import Shop
from . import apps
from .surroundings import Surroundings


def test_a_hard_limit_that_is_too_low_ends_the_run_before_spark_starts(tmp_path: Path) -> None:
    """100 tasks in each of two workers, with a lock and four files of LMDB each, and 24 that any worker has open."""
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 200, "out": 1})
        application = surroundings.application("counts", apps.count())

    def child(connection: Connection) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 500))
        try:
            run(application, master="local[2]")
        except RuntimeUnavailableError as error:
            connection.send(str(error))
        with closing(open_log(application.settings)) as log:
            prepared = prepare(application, log)
            # What is only tight may start, and nothing is known of other hosts.
            check_open_files(prepared, log, 3)
            check_open_files(prepared, log, local_cores("spark://host:7077"))
        connection.send("let run")

    with forked(child) as connection:
        assert answer(connection) == (
            "application 'counts': 200 tasks in 2 task host(s), up to 100 in each, need at least 524 open files "
            "in each: the limit of this "
            "process is 500 (hard limit 500); raise it with `ulimit -n`, LimitNOFILE= in a systemd unit, or `--ulimit "
            "nofile=` of a container, or let this host run fewer tasks at once"
        )
        assert answer(connection) == "let run"


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[3,4]", 3), ("local-cluster[2,1,1024]", None), ("yarn", None)],
)
def test_how_many_worker_processes_share_the_tasks(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores
    assert local_cores(None) == local_cores("local[*]") == os.cpu_count()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors where Linux lists them")
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_tasks_on_kafka_need_what_the_check_counts(broker: Any, tmp_path: Path, guarantee: str) -> None:
    """No less, or a start would be refused that works; and no more than half as much again, with one broker."""
    shop = Shop(broker.bootstrap, tmp_path, partitions=12, processing_guarantee=guarantee)
    shop.sell(*[(f"customer{number}", 1) for number in range(200)])
    with shop.workers() as (log, workers):
        counted = open_files(shop.application, log, 12) - open_files(shop.application, log, 0)
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for worker in workers:
            worker.run_batch(log.end_offsets(worker.partitions), 0)
        needed = len(os.listdir("/proc/self/fd")) - before
    assert counted <= needed <= counted * 1.5
