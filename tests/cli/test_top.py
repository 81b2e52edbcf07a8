"""`penstock top`."""

from __future__ import annotations

import re
from dataclasses import replace

from penstock.plugins.engine.program.run_status import Event, SlotHost, StatusTopic, TaskStatus
from penstock.plugins.operate.cli.options import open_log
from penstock.settings.settings import Settings

from .applications import TARGET, counting
from .console import Console
from .test_status import status


def test_one_frame(console: Console) -> None:
    counting(console)
    console("produce", "words", "--partition", "0", stdin="to\nbe\nor\n")
    assert re.search(r"counting +never started", console("top", TARGET, "--once").stdout)
    with open_log(Settings(data_dir=str(console.directory / ".penstock"))) as log:
        made = status(
            hosts=(SlotHost(0, "node-2", 70, 1, 3_400_000, 75.0, 9, 4),),
            nodes={"in": {"in": 7, "out": 6, "dropped": {"late": 1}}},
        )
        topic = StatusTopic(log, "counting")
        topic.write(made)
        lines = [" ".join(line.split()) for line in console("top", TARGET, "--once").stdout.splitlines()]
        assert lines[0].startswith("counting running for 2h1m, as of ")
        assert lines[1] == "the application is rebalancing: 1 of 2 tasks are not open"
        assert lines[2] == "0/s in · -/s out · 99 % in - · 5 commits · 0 dropped · 2 tasks, 1 open".replace("-/s", "-")
        assert {"lag █ 3", "memory █ 3.2 MiB", "0 node-2/70 1 3.2 MiB 1m15s 4 9", "in - - 7 6 1"} <= {*lines}
        assert "0_0 node-2/70 3 12/s 1,234 900 4 3s" in lines or "0_0 node-2/70 3 12/s 1,234 900 4 4s" in lines
        assert "0_1 opening 0 0/s 0 0 0 -" in lines and "1_0 - 0 - - - - -" in lines
        assert any(line.endswith("1 task opened again (host lost): 0_0") for line in lines)
        topic.write(replace(made, tasks=tuple(TaskStatus(f"9_{number}", 0) for number in range(1_000))))
        lines = console("top", TARGET, "--once").stdout.splitlines()
        assert len(lines) <= 50 and re.fullmatch(r"\.\.\. \d+ more", lines[-1].strip())


def test_what_others_wrote_neither_moves_the_cursor_nor_takes_more_lines(console: Console) -> None:
    """An event may have the text of an error, and that what a record has: it went to the terminal as it was."""
    counting(console)
    with open_log(Settings(data_dir=str(console.directory / ".penstock"))) as log:
        hostile = "query ended: \x1b[2J\x1b]0;title\x07\u202e" + "\nmore" * 60
        made = status(events=(Event(1, hostile),), error=hostile)
        StatusTopic(log, "counting").write(made)
        shown = console("top", TARGET, "--once").stdout
    assert "\x1b" not in shown and "\x07" not in shown and "\u202e" not in shown
    assert len(shown.splitlines()) <= 50 and "query ended: \\u001b[2J" in shown


def test_in_a_pipe_frames_follow_each_other(console: Console) -> None:
    counting(console)
    process = console.start("top", TARGET, "--interval", "50ms")
    assert process.stdout is not None
    titles = 0
    for line in process.stdout:
        titles += line.startswith("counting ")
        if titles == 2:
            break
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()
