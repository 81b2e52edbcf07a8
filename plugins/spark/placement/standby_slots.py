"""Which slots' hosts keep standbys of which other slots, so that each slot has copies on other machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from penstock.plugins.hosts.executor_identity import node_name
from penstock.plugins.replicas.settings import rack_of


def standby_slots(owners: Mapping[int, str], copies: int, racks: str | None = None) -> dict[int, list[int]]:
    """Return, for each slot with an owner, the slots whose hosts keep copies of its tasks: each on another machine.

    `owners`: the text of the ExecutorIdentity of each slot. `racks`: as the setting; a copy is in a rack that has
    neither the slot nor another copy, as far as there are racks. There are fewer than `copies` where there are too few
    machines. A machine is chosen by a hash of slot and machine, so one that comes or goes changes few others.
    """
    machines: dict[str, list[int]] = {}
    for slot, owner in sorted(owners.items()):
        machines.setdefault(node_name(owner), []).append(slot)
    rack = {machine: rack_of(racks, machine) for machine in machines}
    kept: Counter[int] = Counter()
    found: dict[int, list[int]] = {}
    for slot, owner in sorted(owners.items()):
        mine = node_name(owner)
        others = _spread(
            sorted((each for each in machines if each != mine), key=lambda each: _weight(slot, each)), rack, mine
        )
        found[slot] = [min(machines[each], key=lambda host: (kept[host], host)) for each in others[:copies]]
        kept.update(found[slot])
    return found


def _spread(machines: Iterable[str], rack: Mapping[str, str], first: str) -> list[str]:
    """Return the machines in turns through their racks, that of `first` last in each turn."""
    seen: Counter[str] = Counter([rack[first]])
    turns = []
    for each in machines:
        turns.append((seen[rack[each]], each))
        seen[rack[each]] += 1
    return [each for _, each in sorted(turns, key=lambda turn: turn[0])]


def _weight(slot: int, machine: str) -> bytes:
    return blake2b(f"{slot}@{machine}".encode(), digest_size=8).digest()
