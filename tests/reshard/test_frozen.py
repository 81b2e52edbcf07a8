"""A process that reshards is frozen just before it switches, for so long that others take the application over."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import FencedError, Log
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.program.stored_id import read_stored, stored_application
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.state.transfer.reshard import accept, plan_reshard, reshard, undo

from ..leases import Freezing
from .runs import lease, outputs, produce, resharded, run
from .test_sources import always, appending, rows


def begun(where: str, directory: Path) -> Log:
    """Return a log with an application that has run."""
    log = open_log(appending(directory).with_settings(log=f"{where}:{directory / 'log'}").settings)
    for topic, partitions in (("in", 4), ("new", 7), ("out", 1)):
        log.create_topic(topic, partitions)
    produce(log, "in", rows(0, 3))
    run(appending(directory), log)
    return log


@pytest.mark.parametrize("where", ["memory", "local"])
def test_it_does_not_switch_after_the_application_has_gone_on(where: str, tmp_path: Path) -> None:
    log, app = begun(where, tmp_path), appending(tmp_path, "new")

    def go_on() -> None:
        successor = log.lease("shop", "the application", 10_000)
        produce(log, "in", rows(3, 5))
        run(appending(tmp_path), log)
        successor.release()

    frozen = Freezing(lease(app, log), "stored-as", go_on)
    with pytest.raises(FencedError, match="a test"):
        reshard(plan_reshard(app, log, 7, sources={"in": "new"}), log, frozen)
    assert read_stored("shop", log).id == "shop"
    resharded(app, log, 7, sources={"in": "new"})
    produce(log, "new", rows(5, 6))
    run(app, log)
    assert outputs(log) == always(tmp_path, 6)
    log.close()


@pytest.mark.parametrize("where", ["memory", "local"])
def test_a_host_of_the_new_layout_that_wakes_while_it_is_undone(where: str, tmp_path: Path) -> None:
    """It commits nothing: the old layout processes the same records."""
    log, app = begun(where, tmp_path), appending(tmp_path, "new")
    resharded(app, log, 7, sources={"in": "new"})
    prepared = prepare(stored_application(app, log), log)
    resources = ProcessResources()
    frozen = [
        TaskWorker(prepared.application, task, partitions, log, resources=resources)
        for task, partitions in prepared.assignment.tasks.items()
    ]
    for each in frozen[1:]:
        each.run_batch({}, 0)  # the others have no fence yet

    def wake() -> None:
        produce(log, "new", rows(3, 6))
        for each in frozen:
            with pytest.raises(FencedError):
                each.run_batch(log.end_offsets(each.partitions), 0)

    undo(app, log, Freezing(lease(app, log), "stored-as", wake))
    for each in frozen:
        each.close()
    resources.close()
    produce(log, "in", rows(3, 6))
    run(appending(tmp_path), log)
    assert outputs(log) == always(tmp_path, 6)
    log.close()


@pytest.mark.parametrize("where", ["memory", "local"])
def test_it_deletes_nothing_of_a_layout_that_others_went_back_to(where: str, tmp_path: Path) -> None:
    log, app = begun(where, tmp_path), appending(tmp_path, "new")
    resharded(app, log, 7, sources={"in": "new"})

    def go_back() -> None:
        successor = log.lease("shop", "the application", 10_000)
        undo(app, log, successor)
        successor.release()

    with pytest.raises(FencedError, match="a test"):
        accept(app, log, Freezing(lease(app, log), "stored-as", go_back))
    produce(log, "in", rows(3, 6))
    run(appending(tmp_path), log)
    assert outputs(log) == always(tmp_path, 6)
    log.close()
