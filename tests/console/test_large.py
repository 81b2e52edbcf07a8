"""Pages of a large application: 200 nodes in 20 sub-topologies, and 1,000 tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock import Processor, SystemClock, Topology
from penstock.console import console_app
from penstock.plugins.engine.program.run_status import RunStatus, SlotHost, StatusTopic, TaskStatus
from penstock.plugins.engine.task.local_state.restoring import RestoreProgress
from penstock.queries import Queries

from ..spark.surroundings import Surroundings
from .test_pages import check_markup, in_process

PARTS, PARTITIONS, PROCESSORS = 20, 50, 8


class Pass(Processor):
    def process(self, record: Any) -> None:
        self.context.forward(record)


def topology() -> Topology:
    made = Topology()
    for part in range(PARTS):
        made.add_source(f"source {part}", f"in-{part}")
        names = [f"source {part}"]
        for number in range(PROCESSORS):
            names.append(f"step {part}.{number}")
            made.add_processor(names[-1], Pass, names[-2])
        made.add_sink(f"sink {part}", f"out-{part}", names[-1])
    return made


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with Surroundings(tmp_path_factory.mktemp("large") / "data") as surroundings:
        surroundings.create(**{f"in-{part}": PARTITIONS for part in range(PARTS)})
        now_ms = SystemClock().now_ms()
        tasks = tuple(
            TaskStatus(
                f"{part}_{number}", number % 8, f"node-{number % 8}", 100 + number % 8, number != 7, 0.0, 10.0 * part,
                now_ms, restoring=RestoreProgress(5, 1.0, 5.0, 0.5, 60.0) if number == 7 else None, records_in=10,
            )
            for part in range(PARTS)
            for number in range(PARTITIONS)
        )  # fmt: skip
        hosts = tuple(SlotHost(slot, f"node-{slot}", 100 + slot, 125, 1 << 30, 5.0, 9, 9) for slot in range(8))
        made = surroundings.application("app", topology())
        nodes = {name: {"in": 5, "out": 5, "dropped": {}} for name in made.program.nodes}
        status = RunStatus("app", "d", "continuous", now_ms, now_ms, tasks=tasks, hosts=hosts, nodes=nodes)
        StatusTopic(surroundings.log, "app").write(status)
        with Queries.of_this_machine(made) as queries, closing(console_app(queries)) as app:
            yield app


def test_every_page_is_of_a_bearable_size(console: Any) -> None:
    for page, most in (("", 40_000), ("tasks", 120_000), ("topology", 400_000), ("events", 20_000), ("stores", 20_000)):
        answer = in_process(console, page)
        assert answer.status == 200 and len(answer.html) < most, (page, len(answer.html))
        check_markup(answer)
    assert len(re.findall("<title>step ", in_process(console, "topology").html)) == PARTS * PROCESSORS


def test_tasks_are_found_and_all_are_on_some_page(console: Any) -> None:
    overview = in_process(console, "").text
    assert "tasks open 980 of 1,000" in overview
    assert "Not ready: the application is rebalancing: 20 of 1000 tasks are not open" in overview
    found: list[str] = []
    page = "tasks?sort=rate"
    while True:
        answer = in_process(console, page)
        found += re.findall(r'scope="row">(\d+_\d+)<', answer.html)
        following = [each for each in answer.page.links() if each.startswith("tasks?") and "page=" in each]
        if len(found) >= 1_000 or not following:
            break
        page = following[-1]
    assert len(found) == len(set(found)) == 1_000 and found[0].startswith("19_")
    answer = in_process(console, "tasks?filter=19_7")
    assert "1 to 1 of 1, 1 restore their state" in answer.text and "restoring 50%, 1/s, 1m to go" in answer.text
    assert "1 to 100 of 120" in in_process(console, "tasks?filter=node-3").text
