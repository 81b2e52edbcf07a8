"""History: the steps of a simulation and their faults. Each may be left out or simpler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

STEPS = 160
"""The most steps of a history in which faults strike, where nothing else is said."""
DELAYED = "is delayed"
LOG_FAULTS = ("dies", "freezes", "loses the log", DELAYED)
OVERTAKEN = "is overtaken"
DISK_FAULTS = ("dies", "freezes", "is refused by its disk", "loses power", OVERTAKEN)
"""What strikes hosts at their operations on the log, and at those on the disk. A host is overtaken where its other
threads go on in the middle of a snapshot or a cleaning."""
_KINDS = {
    "rest": 4, "arrive": 5, "work": 7, "call": 7, "strike": 8, "orphans": 4, "wake": 3, "give": 1, "pass": 2,
    "markers": 1, "start": 1, "jump": 1, "maintain": 1, "power": 0.5, "deploy": 0.6, "purge": 1, "lose": 1, "damage": 1,
    "stop": 0.3, "plan": 2, "follow": 2, "adopt": 0.3,
}  # fmt: skip
"""What a step may do, and how often a seed chooses it."""
_LOG_OPERATIONS = {"commits": 3, "sends": 1, "ends": 0.5, "takes": 2, "fetches": 2, "asks": 1, "": 1}
_DISK_OPERATIONS = {
    "appends": 3, "writes": 2, "begins": 2, "uploads": 2, "completes": 2, "deletes": 2, "syncs": 1, "creates": 1,
    "lists": 1, "reads": 1, "makes": 1, "opens": 1, "cuts": 1, "": 3,
}  # fmt: skip
_STEPS = {
    "commit": 4, "cleaning": 4, "snapshot": 3, "restoring": 3, "opening": 5, "first commit": 2, "sending": 2,
    "change of the stores": 2, "following": 2, "looking for a snapshot": 1, "reading": 1, "ending": 1,
    "global stores": 1, "working": 0.5, "planning and closing": 0.5,
}  # fmt: skip
"""The steps of the engine's work in which faults strike (`engine_steps.STEPS`), and how often a seed chooses them."""
_UPKEEP_OPERATIONS = {"lists": 1, "reads": 1, "writes": 1, "completes": 1, "deletes": 2}
_SIMPLER = {"call": ("rest",), "work": ("rest",), "orphans": ("give",)}
COMMIT_INTERVALS = ("0ms", "20ms", "100ms", "1s")
"""Those that a history may have, the simplest first."""


@dataclass(frozen=True)
class Fault:
    """Strikes a host at one of its operations.

    `kind`: one of `LOG_FAULTS` or `DISK_FAULTS`. `operation`: the first words of the operation; empty: any at which
    this kind strikes. `step`: the step of the engine's work in which it strikes, whichever host does it; empty: any.
    `after`: after it, not before. `later`: how many such operations pass before. `amount` chooses how often a disk
    refuses, how long an operation takes, and how far other threads go on.
    """

    kind: str
    operation: str = ""
    after: bool = False
    later: int = 0
    amount: int = 0
    step: str = ""

    @classmethod
    def of(cls, random: Random, *, on_disk: bool) -> Fault:
        """Return a random fault: at operations on the log or, `on_disk`, also on the disk."""
        is_of_disk = on_disk and random.random() < 0.6
        kind = random.choice((*DISK_FAULTS, *[OVERTAKEN] * 3) if is_of_disk else (*LOG_FAULTS, "freezes"))
        operations = _DISK_OPERATIONS if is_of_disk else _LOG_OPERATIONS
        if kind == OVERTAKEN:
            operations = _UPKEEP_OPERATIONS
        [operation] = random.choices(list(operations), list(operations.values()))
        step = ""
        if random.random() < 0.6 and kind != OVERTAKEN:
            [step], operation = random.choices(list(_STEPS), list(_STEPS.values())), ""
        later = random.choice((0, 0, 0, 1, 2, 5) if is_of_disk else (0, 0, 0, 1, 2))
        return cls(kind, operation, random.random() < 0.5, later, random.randrange(12), step)


@dataclass(frozen=True)
class Step:
    """One step: its kind, and numbers that choose among what there is when it runs, such as one of the live hosts.

    A step for which there is nothing then does nothing. A fault waits for the host's next operation that it is for.
    """

    kind: str
    host: int = 0
    amount: int = 0
    fault: Fault | None = None

    @classmethod
    def of(cls, random: Random, *, on_disk: bool) -> Step:
        """Return a random step."""
        [kind] = random.choices(list(_KINDS), list(_KINDS.values()))
        fault = Fault.of(random, on_disk=on_disk) if kind == "strike" else None
        return cls(kind, random.randrange(8), random.randrange(64), fault)

    def simpler(self) -> Iterator[Step]:
        """Yield simpler steps, the simplest first."""
        if self.fault is not None and self.fault.later:
            yield replace(self, fault=replace(self.fault, later=0))
        for kind in _SIMPLER.get(self.kind, ()):
            yield replace(self, kind=kind)
        if self.amount:
            yield replace(self, amount=0)
        if self.host:
            yield replace(self, host=0)


@dataclass(frozen=True)
class History:
    """What happens to a cluster. `rest_arrives`: records that no step lets arrive do so when faults have ended.

    `commit_interval` is the application's where its settings have none. `dice`: the seed of what is left to chance, the
    sizes of changelog files and what a machine that goes down has not synced.
    """

    steps: tuple[Step, ...]
    commit_interval: str = COMMIT_INTERVALS[0]
    rest_arrives: bool = False
    dice: int = 0

    @classmethod
    def of(cls, random: Random, most: int = STEPS, *, on_disk: bool = False) -> History:
        """Return a random history of at most so many steps. The same choices of `random` make the same history.

        `on_disk`: with faults at operations on the disk, where the changelog is in a directory.
        """
        steps = tuple(Step.of(random, on_disk=on_disk) for _ in range(random.randrange(most)))
        return cls(steps, random.choice(COMMIT_INTERVALS), random.random() < 0.8, random.randrange(2**32))
