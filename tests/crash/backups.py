"""Backups beside an application that works and is killed; then a host that has nothing continues from the last one."""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.plugins.state.transfer.backups import Backup, Catalog
from penstock.record import TopicPartition

from .driver import TARGET, send
from .offsets import expect_again
from .programs import ID, PROGRAMS
from .topics import partitions

if TYPE_CHECKING:
    from .faults import Strike
    from .harness import Harness

_PATIENCE = "60s"
_ORDER = re.compile(rb"orders-\d+-\d+")


def go_back(harness: Harness, strike: Strike) -> str | None:
    """Back up, kill a backup with the application, and the application during a third one; stop, reset and restore.

    What was processed after the backup is processed again, and no more. The state counts each input once.
    """
    choice = random.Random(strike.seed)
    _back_up(harness)
    killed = _struck(harness, choice.uniform(0.2, 3.0), with_backup=True)
    harness.wait_for_outputs(200, "work after a kill during a backup")
    kept = _struck(harness, choice.uniform(0.2, 3.0), with_backup=False)
    harness.wait_for_outputs(200, "work after a backup")
    harness.feeder.pause()
    harness.stop()
    before = {each: at or 0 for each, at in harness.log.committed(ID, partitions(PROGRAMS["processor"].read)).items()}
    backup = Catalog(str(harness.directory / "backups"), ID).read()
    _command(harness, "reset", TARGET, "--yes")
    _command(harness, "state", "restore", TARGET, str(harness.directory / "backups"))
    again = _note_again(harness, backup, before)
    harness.next_host = f"restored-{strike.seed}"
    return f"backups {'killed' if killed else 'made'} and {'failed' if kept else 'made'}; {again} inputs again"


def _back_up(harness: Harness) -> None:
    _command(harness, "state", "backup", TARGET, str(harness.directory / "backups"), "--patience", _PATIENCE)


def _command(harness: Harness, *arguments: str) -> None:
    done = harness.driver.command(*arguments)
    if done.returncode != 0:
        harness.fail(f"penstock {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()[-1500:]}")


def _struck(harness: Harness, after_seconds: float, *, with_backup: bool) -> int:
    """Begin a backup and kill the application, with it or without; return the exit code of the backup."""
    driver, codes = harness.driver, list[int]()
    where = str(harness.directory / "backups")
    running = {each.pid for each in driver.processes()}

    def back_up() -> None:
        codes.append(driver.command("state", "backup", TARGET, where, "--patience", _PATIENCE).returncode)

    thread = threading.Thread(target=back_up)
    thread.start()
    time.sleep(after_seconds)
    driver.expect_end()
    send([each for each in driver.processes() if with_backup or each.pid in running], signal.SIGKILL)
    assert driver.process is not None
    driver.process.wait()
    thread.join()
    harness.ensure_running()
    if codes[0] != 0 and not with_backup:
        harness.problems.append(f"a backup beside an application that was killed failed with exit code {codes[0]}")
    return codes[0]


def _note_again(harness: Harness, backup: Backup, before: dict[TopicPartition, int]) -> int:
    """Note which inputs are processed again, and for which timers fire again; return how many are processed."""
    harness.again = harness.again or Counter()
    then = {each: at for commit in backup.commits.values() if commit for each, at in commit.positions.items()}
    tasks = {each: task for task, commit in backup.commits.items() if commit for each in commit.positions}
    harness.again.update(_waiting(harness, backup))
    return sum(expect_again(harness, tasks[each], each, at, before[each]) for each, at in then.items())


def _waiting(harness: Harness, backup: Backup) -> set[str]:
    """Return the inputs that had timers at the backup: these have fired since, and fire again."""
    catalog, found = Catalog(str(harness.directory / "backups"), ID), set[str]()
    for task, commit in backup.commits.items():
        if commit is not None and task.startswith("0_"):
            rows: dict[bytes, bytes | None] = {}
            with closing(catalog.changelog(task)) as changelog:
                for changes, _ in changelog.restore(commit.version, None).steps:
                    rows.update(changes.get("ledger.timers", ()))
            found |= {each.decode() for key, value in rows.items() if value is not None for each in _ORDER.findall(key)}
    return found
