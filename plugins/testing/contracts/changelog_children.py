"""What other processes do in the tests of changelogs: they are killed while they write, or find no room.

They import this module, so it imports little.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from penstock import Changelog, ChangelogError

from .child import Step, act_until_killed, without_room

Call = tuple[str, tuple[Any, ...]]
"""A method of a changelog, and its arguments."""


def is_current() -> bool:
    """Say that no other process has the task: what a log answers that was not asked."""
    return True


def change_until_killed(
    connection: Connection,
    opener: Changelog,
    location: str,
    last: str | None,
    calls: Sequence[Call],
    place: Step | None,
) -> None:
    """Open the task as the engine does, make the calls, and kill this process at a step of the last one."""
    log = opener(location, "application", "0_0")
    if last is not None:
        for _ in log.restore(last, None).steps:
            pass
    *before, (method, arguments) = calls
    for name, given in before:
        getattr(log, name)(*given)
    connection.send("ready")
    act_until_killed(connection, lambda: getattr(log, method)(*arguments), place)


def append_without_room(connection: Connection, opener: Changelog, location: str, last: str, large: Any) -> None:
    """Append a delta where files may not grow, then a small one; send what was raised."""
    log = opener(location, "application", "0_0")
    for _ in log.restore(last, None).steps:
        pass
    try:
        with without_room():
            log.append(*large)
        outcome = "appended"
    except ChangelogError as error:
        outcome = f"ChangelogError: {error}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    connection.send(outcome)
    log.append(*connection.recv())
    connection.send("appended")
