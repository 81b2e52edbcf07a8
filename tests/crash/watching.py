"""Compares what `penstock status` and the metrics say with what is in the topics."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from penstock.clock import SystemClock
from penstock.plugins.engine.program.run_status import RunStatus, StatusTopic

from .driver import TARGET
from .programs import ID

if TYPE_CHECKING:
    from .harness import Harness

Scraped = dict[tuple[str, str], float]
"""Metrics by name and task."""
_MOST_LOOKS = 20


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
    harness.wait_for(lambda: _agree(harness) is not None, "status and metrics to agree")
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
    """Return a status that was written between two looks at the metrics, if its counts are between theirs.

    They cannot be the same: punctuators fire every two seconds, the status is written every five, and to read it takes
    a process, on a loaded machine longer than that.
    """
    port = harness.driver.metrics_port
    before, since_ms = _scraped(port), SystemClock().now_ms()
    for _ in range(_MOST_LOOKS):
        told = _told(harness)
        if told["written_ms"] > since_ms:
            return told if is_between(told, before, _scraped(port)) else None
        time.sleep(0.5)
    return None


def is_between(told: dict[str, Any], before: Scraped, after: Scraped) -> bool:
    """Return whether the status has no count that is below the metrics before it, or above those after it."""
    counts = [
        (before.get(key), each.get(count), after.get(key))
        for each in told["tasks"]
        for count in ("records_in", "records_out", "commits")
        for key in [(f"penstock_task_{count}_total", each["task"])]
    ]
    are_right = all(
        low is not None and found is not None and high is not None and low <= found <= high
        for low, found, high in counts
    )
    return are_right and after.get(("lag", "")) == told["lag"]


def _scraped(port: int) -> Scraped:
    """Return the metrics of tasks by name and task, and the sum of the lag."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as response:
            text = response.read().decode()
    except URLError:
        return {}
    found: Scraped = {("lag", ""): 0}
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
