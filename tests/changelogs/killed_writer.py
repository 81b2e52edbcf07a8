"""Appends without end to a changelog until it is killed: `python killed_writer.py LOCATION NUMBER-OF-LAST-VERSION`."""

from __future__ import annotations

import random
import sys

from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.store import Changes

_KEYS = 40


def version_of(number: int) -> str:
    """Return the name of the version with that number."""
    return f"{number:012d}-00000000"


def delta_of(number: int) -> Changes:
    """Return the changes of the delta with that number, a function of nothing else."""
    draw = random.Random(number)
    rows: dict[bytes, bytes | None] = {}
    for _ in range(5):
        key = b"key%02d" % draw.randrange(_KEYS)
        rows[key] = None if draw.random() < 0.2 else b"%d-" % number + draw.randbytes(3000)
    return {"s": sorted(rows.items())}


def write(location: str, number: int) -> None:
    """Append deltas, print the number of each, and snapshot and clean as a task does."""
    log = DirectoryChangelog(location, "app", "0_0", chunk_bytes=2000, snapshot_floor_bytes=200_000)
    state: dict[bytes, bytes | None] = {}
    if number:
        for changes, _ in log.restore(version_of(number), None).steps:
            state.update(changes.get("s", []))
    while True:
        changes = delta_of(number + 1)
        log.append(changes, version_of(number) if number else None, version_of(number + 1))
        number += 1
        print(number, flush=True)
        state.update(changes["s"])
        if log.wants_snapshot():
            entries = (("s", key, value) for key, value in sorted(state.items()) if value is not None)
            log.snapshot(version_of(number), entries)
            log.clean(version_of(number), 0, 10**15, lambda: True)


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]))
