"""`penstock` on a Kafka broker that is not there."""

from __future__ import annotations

import pytest

from ..bad_input.world import says
from .console import Console

NOBODY = "127.0.0.1:1"
"""Nothing listens at port 1."""


@pytest.mark.parametrize("command", [["topics", "list"], ["run", "shop:application"], ["lag", "shop:application"]])
def test_one_line_says_so(console: Console, command: list[str]) -> None:
    console.write(
        "shop.py",
        "from penstock import Application, Topology\n"
        "topology = Topology().add_source('in', 'orders').add_sink('out', 'totals', 'in')\n"
        f"application = Application('shop', topology, log='kafka:{NOBODY}', task_timeout='1s')\n",
    )
    target = [] if "shop:application" in command else ["--log", f"kafka:{NOBODY}"]
    _, err = console.process(*command, *target, code=1, environment={"PENSTOCK_TASK_TIMEOUT": "1s"})
    assert len(err.strip().splitlines()) == 1, err
    says(err, f"Kafka at {NOBODY} did not answer for 1 s (task_timeout)", "Connection refused")


@pytest.mark.parametrize("command", ["lag", "status"])
def test_who_only_looks_says_how_long_to_wait(console: Console, command: str) -> None:
    console.write(
        "shop.py",
        "from penstock import Application, Topology\n"
        "topology = Topology().add_source('in', 'orders').add_sink('out', 'totals', 'in')\n"
        f"application = Application('shop', topology, log='kafka:{NOBODY}')\n",
    )
    result = console(command, "shop:application", "--timeout", "1s", code=1)
    says(result.stderr, f"Kafka at {NOBODY} did not answer for 1 s", "Connection refused")
