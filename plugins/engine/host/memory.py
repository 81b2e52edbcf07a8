"""How often the kernel has killed processes of this container for their memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def memory_kills(root: Path = _ROOT, own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the kernel's count for this process's control group, of version 2 or 1; 0 where there is none."""
    try:
        groups = own.read_text().splitlines()
    except OSError:
        return 0
    for file in _files(root, groups):
        try:
            counts = dict(line.split() for line in file.read_text().splitlines())
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def _files(root: Path, groups: list[str]) -> Iterator[Path]:
    """Yield the files that may have the count. Lines of `groups` are "NUMBER:CONTROLLERS:PATH"."""
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers == "":
            directory, name = root, "memory.events"
        elif "memory" in controllers.split(","):
            directory, name = root / "memory", "memory.oom_control"
        else:
            continue
        yield directory / path.lstrip("/") / name
        # A container may see its own group as the root, but its path as the machine knows it.
        yield directory / name
