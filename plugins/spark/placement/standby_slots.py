"""Which slots' hosts keep standbys of which other slots, so that each slot has copies on other machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b

from penstock.plugins.hosts.executor_identity import host_name


def standby_slots(owners: Mapping[int, str], copies: int) -> dict[int, list[int]]:
    """Return, for each slot with an owner, the slots whose hosts keep copies of its tasks: each on another machine.

    `owners`: the text of the ExecutorIdentity of each slot. There are fewer than `copies` where there are too few
    machines. A machine is chosen by a hash of slot and machine, so one that comes or goes changes few others.
    """
    machines: dict[str, list[int]] = {}
    for slot, owner in sorted(owners.items()):
        machines.setdefault(host_name(owner), []).append(slot)
    kept: Counter[int] = Counter()
    found: dict[int, list[int]] = {}
    for slot, owner in sorted(owners.items()):
        others = sorted((each for each in machines if each != host_name(owner)), key=lambda each: _weight(slot, each))
        found[slot] = [min(machines[each], key=lambda host: (kept[host], host)) for each in others[:copies]]
        kept.update(found[slot])
    return found


def _weight(slot: int, machine: str) -> bytes:
    return blake2b(f"{slot}@{machine}".encode(), digest_size=8).digest()
