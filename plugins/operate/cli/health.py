"""The verb `health`: whether an application is alive and ready, as an exit code."""

from __future__ import annotations

from typing import Any

import click

from penstock import SystemClock

from .command import verb
from .failures import FAILED
from .options import application_options, followed, timeout_option
from .output import print_json, print_text
from .status import latest_run


@verb(
    ("Whether all tasks are open", "penstock health wordcount:application"),
    ("Whether it works at all, which a long restore does", "penstock health wordcount:application --live"),
)
@click.option("--live", is_flag=True, help="Ask whether it is alive; it may still restore its state.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object.")
@timeout_option
@application_options
def health(target: str, live: bool, as_json: bool, **where: Any) -> None:
    """Say whether the application MODULE:ATTR is ready: exit code 0, or 1 if it is not.

    Ready: its driver runs, all of its tasks are open, and none is paused. The answer is what the driver wrote to the log, every five
    seconds. The endpoint of `metrics_port` has the same answers, without a process for each.
    """
    with followed(target, follow=False, interval="5s", **where) as (application, log, _):
        run = latest_run(application, log)
    found = run.health(SystemClock().now_ms())
    if as_json:
        print_json(run.health_data(found))
    else:
        text = "ready" if found.is_ready else "alive, not ready" if found.is_live else "not alive"
        print_text(f"{run.application_id}: {text}{f': {found.reason}' if found.reason else ''}\n")
    if not (found.is_live if live else found.is_ready):
        click.get_current_context().exit(FAILED)
