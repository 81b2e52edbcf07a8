"""Compares what `penstock status` and the metrics say with what is in the topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from penstock.clock import SystemClock
from penstock.plugins.runtime.application.run_status import RunStatus
from penstock.plugins.runtime.application.status_topic import StatusTopic

from .driver import TARGET
from .programs import ID

if TYPE_CHECKING:
    from .harness import Harness


def expect_status_of_driver(harness: Harness) -> None:
    """Wait until the status is that of the driver that runs, whichever others were frozen or killed meanwhile."""

    def is_said() -> bool:
        run, process = _status(harness), harness.driver.process
        return (
            run is not None
            and process is not None
            and run.driver.endswith(f" process {process.pid}")
            and run.state(SystemClock().now_ms()) == "running"
        )

    harness.wait_for(is_said, "the status of the driver that runs")


def stop(harness: Harness) -> None:
    """Let the application work once more without a fault, compare counts, stop it, and expect that to be said."""
    expect_status_of_driver(harness)
    harness.wait_for(lambda: _agree(harness) is not None, "status and metrics to be the same")
    before, inputs = _told(harness), len(harness.reader.inputs)
    harness.wait_for_outputs(100, "work before the end")
    harness.settle()
    harness.reader.read()
    harness.say(f"status and metrics are compared with {len(harness.reader.inputs) - inputs} inputs without a fault")

    def agrees() -> bool:
        now = _agree(harness)
        if now is None or now["lag"] != 0:
            return False
        if now["driver"] != before["driver"] or now["openings"] != before["openings"]:
            return True  # what was done before a task was opened again may not have been reported
        found, expected = (_counts(now) - _counts(before)), (_read(now) - _read(before))
        if found > expected:
            harness.fail(f"the status says that {found} records were read from the sources, and there were {expected}")
        return found == expected

    harness.wait_for(agrees, "status and metrics to say what was read")
    harness.stop()
    ended = _status(harness)
    if ended is None or (ended.state(0), ended.ended_by) != ("stopped", "SIGTERM"):
        harness.problems.append(f"the status after a clean stop is {ended}")


def _status(harness: Harness) -> RunStatus | None:
    return StatusTopic(harness.log, ID).read()


def _told(harness: Harness) -> dict[str, Any]:
    """Return what `penstock status --json` prints."""
    done = harness.driver.command("status", TARGET, "--json")
    if done.returncode:
        harness.fail(f"penstock status: {done.stderr[-600:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _agree(harness: Harness) -> dict[str, Any] | None:
    """Return what the status says, if the metrics say the same."""
    told, scraped = _told(harness), _scraped(harness.driver.metrics_port)
    tasks = {each["task"]: each for each in told["tasks"]}
    same = all(
        scraped.get((f"penstock_task_{metric}_total", task)) == each.get(count)
        for task, each in tasks.items()
        for metric, count in (("records_in", "records_in"), ("records_out", "records_out"), ("commits", "commits"))
    )
    return told if same and scraped.get(("lag", "")) == told["lag"] else None


def _scraped(port: int) -> dict[tuple[str, str], float]:
    """Return the metrics of tasks by name and task, and the sum of the lag."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
    except URLError:
        return {}
    found: dict[tuple[str, str], float] = {("lag", ""): 0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "penstock_lag_offsets":
                found["lag", ""] += sample.value
            elif "task" in sample.labels:
                found[sample.name, sample.labels["task"]] = sample.value
    return found


def _source_tasks(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks that read only sources: in internal topics, markers of transactions take offsets, too."""
    return [each for each in told["tasks"] if not any(read["internal"] for read in each["partitions"])]


def _counts(told: dict[str, Any]) -> int:
    return sum(each.get("records_in", 0) for each in _source_tasks(told))


def _read(told: dict[str, Any]) -> int:
    return sum(read["position"] or 0 for each in _source_tasks(told) for read in each["partitions"])
