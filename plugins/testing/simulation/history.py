"""History: the steps of a simulation and their faults. Each may be left out or simpler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from zlib import crc32

STEPS = 320
"""The most steps of a history in which faults strike, where nothing else is said."""
DELAYED = "is delayed"
LOG_FAULTS = ("dies", "freezes", "loses the log", DELAYED)
OVERTAKEN = "is overtaken"
DISK_FAULTS = ("dies", "freezes", "is refused by its disk", "loses power", OVERTAKEN)
"""What strikes hosts at their operations on the log, and at those on the disk. A host is overtaken where its other
threads continue in the middle of a snapshot or a cleaning."""
COPY_FAULTS = ("dies", "freezes", "is refused by its disk")
"""What strikes hosts at their writes to local state."""
_KINDS = {
    "rest": 4, "arrive": 5, "work": 7, "call": 7, "strike": 8, "orphans": 4, "wake": 3, "give": 1, "pass": 2,
    "markers": 1, "start": 1, "jump": 1, "maintain": 1, "power": 0.5, "deploy": 0.6, "purge": 1, "lose": 1, "damage": 1,
    "stop": 0.3, "plan": 2, "follow": 2, "adopt": 0.3, "reset": 0.3, "move": 0.5,
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
    "global stores": 1, "working": 0.5, "reset": 1.5, "move of the changelog": 1, "planning and closing": 0.5,
}  # fmt: skip
"""The steps of the engine's work in which faults strike (`engine_steps.STEPS`), and how often a seed chooses them."""
SELDOM = "seldom done"
_SELDOM: Mapping[str, Mapping[str, int]] = {
    "backup": {
        "asks": 60, "completes": 90, "creates": 90, "deletes": 1000, "fetches": 300, "lists": 60, "makes": 90,
        "produces": 700, "reads": 70, "syncs": 60, "writes": 60,
    },
    "change of the stores": {
        "asks": 84, "begins": 630, "commits": 157, "completes": 250, "creates": 250, "deletes": 1000,
        "fetches": 1000, "makes": 250, "syncs": 60, "uploads": 630, "writes": 70,
    },
    "cleaning": {"asks": 62, "deletes": 80, "lists": 40, "reads": 30},
    "commit": {
        "appends": 120, "begins": 120, "commits": 7, "completes": 25, "creates": 25, "cuts": 1000, "deletes": 1000,
        "makes": 40, "opens": 80, "syncs": 8, "uploads": 150, "writes": 5,
    },
    "ending": {"asks": 128, "ends": 400},
    "first commit": {
        "begins": 200, "commits": 10, "completes": 25, "creates": 25, "deletes": 1000, "makes": 25, "syncs": 6,
        "uploads": 250, "writes": 8,
    },
    "following": {"asks": 20, "fetches": 250, "lists": 50, "reads": 25},
    "global stores": {"asks": 10, "fetches": 65},
    "looking for a snapshot": {"asks": 54, "lists": 15, "reads": 25},
    "move of the changelog": {
        "asks": 60, "begins": 400, "completes": 90, "creates": 70, "deletes": 1000, "lists": 20, "looks": 1000,
        "makes": 70, "notes": 109, "reads": 20, "syncs": 20, "takes": 53, "uploads": 1000, "writes": 20,
    },
    "opening": {"commits": 500, "fetches": 1000, "lists": 19, "reads": 800},
    "planning and closing": {"fetches": 300},
    "prune": {
        "completes": 150, "creates": 150, "deletes": 120, "lists": 60, "makes": 300, "reads": 80, "syncs": 100,
        "writes": 150,
    },
    "reading": {"fetches": 6},
    "reset": {"asks": 54, "deletes": 47, "lists": 630, "notes": 60, "removes": 69, "sets": 35, "syncs": 80},
    "reshard": {
        "asks": 60, "commits": 100, "completes": 100, "creates": 100, "deletes": 250, "fetches": 300, "lists": 150,
        "makes": 150, "notes": 90, "reads": 130, "removes": 300, "syncs": 90, "takes": 100, "writes": 80,
    },
    "restoring": {"fetches": 32, "lists": 8, "reads": 6},
    "sending": {"sends": 6},
    "snapshot": {
        "begins": 120, "completes": 60, "creates": 50, "deletes": 1000, "looks": 300, "makes": 1000, "syncs": 25,
        "uploads": 400, "writes": 5,
    },
    "working": {"asks": 4, "begins": 70, "deletes": 90, "fetches": 1000, "uploads": 70},
}  # fmt: skip
"""By step and operation: how likely an aimed fault is for it, in thousandths; the more, the fewer histories do it.
Without such faults, two thousand histories would leave out some."""
_AIMED = 0.2
"""How many histories begin with an aimed fault of each kind, so that one is there wherever something rare happens."""
_SELDOM_SHARE = 0.6
"""How many of the faults of a process that does one thing are for operations that few histories do."""
_MOST_LATER = 60
"""After how many operations at most the others strike."""
_UPKEEP_OPERATIONS = {"lists": 1, "reads": 1, "writes": 1, "completes": 1, "deletes": 2}
_COPY_FAULT_SHARE = 0.25
_COPY_STEPS = {"restoring": 6, "applying": 2, "change of the stores": 2, "following": 2}
"""The steps in which faults strike at writes to local state, and how often a seed chooses them."""
_SIMPLER = {"call": ("rest",), "work": ("rest",), "orphans": ("give",)}
COMMIT_INTERVALS = ("0ms", "20ms", "100ms", "1s")
"""Those that a history may have, the simplest first."""


@dataclass(frozen=True)
class Fault:
    """Strikes a host at one of its operations.

    `kind`: one of `LOG_FAULTS` or `DISK_FAULTS`. `operation`: the first words of the operation; empty: any at which
    this kind strikes. `step`: the step of the engine's work in which it strikes, whichever host does it; empty: any;
    `SELDOM`: at some of the operations that few histories do, chosen by `amount`. `after`: after it, not before.
    `later`: how many such operations pass before. `amount` chooses how often a disk refuses, how long an operation
    takes, and how far other threads get. `on_copy`: at writes to local state, and at no other operations.
    """

    kind: str
    operation: str = ""
    after: bool = False
    later: int = 0
    amount: int = 0
    step: str = ""
    on_copy: bool = False

    @classmethod
    def of(cls, random: Random, *, on_disk: bool) -> Fault:
        """Return a random fault: at operations on the log or, `on_disk`, also on the disk."""
        is_of_disk = on_disk and random.random() < 0.6
        kind = random.choice((*DISK_FAULTS, *[OVERTAKEN] * 3) if is_of_disk else (*LOG_FAULTS, "freezes"))
        operations = _DISK_OPERATIONS if is_of_disk else _LOG_OPERATIONS
        if kind == OVERTAKEN:
            operations = _UPKEEP_OPERATIONS
        [operation] = random.choices(list(operations), list(operations.values()))
        step, aim = "", random.random()
        if kind != OVERTAKEN and aim < 0.25:
            step, operation = SELDOM, ""
        elif kind != OVERTAKEN and aim < 0.7:
            [step], operation = random.choices(list(_STEPS), list(_STEPS.values())), ""
        later = random.choice((0, 0, 0, 1, 2, 5) if is_of_disk else (0, 0, 0, 1, 2))
        return cls(kind, operation, random.random() < 0.5, later, random.randrange(1_200), step)

    @classmethod
    def of_process(cls, random: Random, *, on_disk: bool, step: str = "") -> Fault:
        """Return a random fault for a process that does one thing and ends: in `step`, or at what few histories do."""
        kind = random.choice(_kinds(on_disk=on_disk))
        after, amount = random.random() < 0.5, random.randrange(1_200)
        if random.random() < _SELDOM_SHARE:
            return cls(kind, after=after, amount=amount, step=SELDOM)
        return cls(kind, "", after, random.randrange(_MOST_LATER), amount, step)

    def is_at(self, step: str, what: str) -> bool:
        """Return whether it may strike at the operation `what` in a step."""
        if self.step == SELDOM:
            operation = what.partition(" ")[0]
            dice = crc32(f"{self.amount} {step} {operation}".encode()) % 1_000
            return dice < _SELDOM.get(step, {}).get(operation, 0)
        return what.startswith(self.operation) and self.step in ("", step)


def _kinds(*, on_disk: bool) -> list[str]:
    """Return the kinds of faults that strike any host, each once."""
    return [each for each in dict.fromkeys(LOG_FAULTS + (DISK_FAULTS if on_disk else ())) if each != OVERTAKEN]


def _aimed(random: Random, *, on_disk: bool) -> list[Fault]:
    """Return a fault of each kind, in any order: the first one that is for an operation strikes."""
    kinds = _kinds(on_disk=on_disk)
    random.shuffle(kinds)
    return [Fault(kind, after=random.random() < 0.5, amount=random.randrange(1_200), step=SELDOM) for kind in kinds]


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
        if random.random() < _AIMED:
            steps = (*(Step("strike", fault=each) for each in _aimed(random, on_disk=on_disk)), *steps)
        return cls(steps, random.choice(COMMIT_INTERVALS), random.random() < 0.8, random.randrange(2**32))


def with_copy_faults(history: History, random: Random) -> History:
    """Return a history in which, one time in four, some faults strike where hosts write to their local state."""
    if random.random() >= _COPY_FAULT_SHARE:
        return history
    steps = list(history.steps)
    for _ in range(random.randrange(1, 9)):
        kind, [step] = random.choice(COPY_FAULTS), random.choices(list(_COPY_STEPS), list(_COPY_STEPS.values()))
        after = kind != "is refused by its disk" and random.random() < 0.5
        fault = Fault(kind, "", after, random.randrange(10), random.randrange(1_200), step, True)
        steps.insert(random.randrange(len(steps) + 1), Step("strike", fault=fault))
    return replace(history, steps=tuple(steps))
