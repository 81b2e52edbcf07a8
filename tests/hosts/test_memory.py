"""The kernel's count of processes that it killed for their memory, from files as Linux has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.plugins.engine.host.client import memory_kills

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
VERSION_1 = "9:name=systemd:/\n4:cpu,memory:/docker/ab\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "file", "content", "expected"),
    [
        ("0::/system.slice/spark.service\n", "system.slice/spark.service/memory.events", EVENTS.format(2), 2),
        ("0::/\n", "memory.events", EVENTS.format(1), 1),
        ("0::/../../pod7\n", "memory.events", EVENTS.format(4), 4),
        (VERSION_1, "memory/docker/ab/memory.oom_control", CONTROL.format(3), 3),
        (VERSION_1, "memory/memory.oom_control", CONTROL.format(5), 5),
        (VERSION_1, "memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", 0),
        ("0::/\n", "cpu.stat", "usage_usec 7\n", 0),
        ("", "memory.events", EVENTS.format(1), 0),
    ],
)
def test_the_count(tmp_path: Path, groups: str, file: str, content: str, expected: int) -> None:
    (tmp_path / "cgroup").write_text(groups)
    path = tmp_path / "root" / file
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert memory_kills(tmp_path / "root", tmp_path / "cgroup") == expected


def test_a_system_without_control_groups_has_none(tmp_path: Path) -> None:
    assert memory_kills(tmp_path, tmp_path / "cgroup") == 0
