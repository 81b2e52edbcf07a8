"""The verb `standby`: keeps warm copies of tasks' state on this machine."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from penstock import ConfigError, StoreError

from .command import verb
from .failures import ended_by_sigterm
from .log_lines import TEXT, cli_log, log_format_option, log_lines
from .options import application_options, find_application, open_application
from .output import ProgressMeter, count, note, print_json

if TYPE_CHECKING:
    from penstock import Application, Log
    from penstock.plugins.state.copies.standbys import Standbys

_LOOK_SECONDS = 0.5


@verb(
    ("Copies of all tasks, until Ctrl-C", "penstock standby shop:application"),
    ("Of two tasks", "penstock standby shop:application --task 0_0 --task 0_1"),
    ("Bring the copies to the last commits, then end", "penstock standby shop:application --once"),
)
@click.option("--task", "tasks", metavar="TASK", multiple=True, help="Only of this task, e.g. 0_3; repeatable.")
@click.option("--once", is_flag=True, help="End when every copy has been at its task's last commit.")
@application_options
@log_format_option("How log lines are shown; json: an object a line, progress too.")
@click.option("--quiet", "-q", is_flag=True, help="No progress, and of log lines only warnings.")
@click.option("--json", "as_json", is_flag=True, help="At the end, print the copies as a JSON list.")
def standby(
    target: str, tasks: tuple[str, ...], once: bool, log_format: str, quiet: bool, as_json: bool, **where: Any
) -> None:
    """Keep warm copies of the state of MODULE:ATTR on this machine.

    A copy is in the place of the task's local state, under `state_dir`. A task that is opened on this machine uses it
    and restores only what is missing; the copy is left to it meanwhile. It works from any machine that reaches the log
    and the changelog. The application does not notice it. Ctrl-C and SIGTERM end it; the next start continues from there.
    """
    from penstock.plugins.state.copies.standbys import Standbys

    application = find_application(target, **where)
    say = note if log_format == TEXT else cli_log.info
    with (
        ended_by_sigterm(),
        log_lines("warning" if quiet else "info", log_format, application.id),
        open_application(application) as (stored, log),
    ):
        _check_tasks(stored, log, tasks)
        standbys = Standbys(stored, log, tasks or None)
        try:
            with ProgressMeter(f"standby of {application.id}", quiet=quiet, say=say) as meter:
                while not (once and _are_done(standbys)):
                    time.sleep(_LOOK_SECONDS)
                    _show(meter, standbys)
        finally:
            standbys.close()
            if as_json:
                print_json([asdict(each) for each in standbys.status()])


def _check_tasks(application: Application, log: Log, tasks: tuple[str, ...]) -> None:
    from penstock.plugins.engine.program.saved_program import saved_tasks

    known = saved_tasks(application.id, log)
    unknown = [task for task in tasks if task not in known]
    if unknown:
        raise ConfigError(f"--task {unknown[0]}: {application.id!r} has the tasks {', '.join(known) or 'none'}")
    if not known:
        note(f"{application.id} has saved no stores")


def _are_done(standbys: Standbys) -> bool:
    failed = [each for each in standbys.status() if each.error]
    if failed:
        raise StoreError(f"standby of task {failed[0].task}: {failed[0].error}")
    return standbys.are_current


def _show(meter: ProgressMeter, standbys: Standbys) -> None:
    copies = standbys.status()
    behind = sum(copy.behind or 0 for copy in copies)
    numbers = {state: sum(copy.state == state for copy in copies) for state in ("restoring", "taken", "failed")}
    parts = [count(len(copies), "task"), f"{count(behind, 'version')} behind"]
    parts += [f"{number} {state}" for state, number in numbers.items() if number]
    meter.update(sum(copy.restored for copy in copies), text=" · ".join(parts))
