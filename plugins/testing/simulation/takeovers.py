"""Takeovers: in some histories hosts freeze in the middle, others take over their tasks, and then they wake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from .cluster import Cluster
from .history import Fault, History, Step
from .host import Host
from .host_world import LATE, UPKEEP

TAKE_OVER = "take over"
_ONE_IN = 4
"""One in how many histories has takeovers."""
_SHARE = 0.05
"""After how many of its steps there is one."""
_BEFORE = (
    ("arrive", "arrive", "work", "call"), ("arrive", "pass", "work"), ("call", "call", "arrive", "pass", "work")
)  # fmt: skip
"""Steps of the host that freezes, all or the first two parts: it has a commit to write, and its changelog to keep."""
_UPKEEP = ("cleaning", "snapshot", "looking for a snapshot")
_SHORT, _LONG, _LONGEST = 1, 5, 7
"""Numbers of a `pass`: a millisecond, a time after which a commit is due, and one after which a snapshot may be."""
_BEFORE_UPKEEP = (
    ("pass", _LONGEST), ("arrive", 0), ("arrive", 0), ("rest", LATE.index(UPKEEP)), ("arrive", 0), ("arrive", 0),
    ("pass", _LONG), ("work", 0),
)  # fmt: skip
"""Steps of one that freezes in its upkeep: a snapshot waits for its thread, and so does a commit after it."""
_STEPS = {
    "cleaning": 3, "snapshot": 5, "looking for a snapshot": 1, "working": 4, "reading": 3, "commit": 1, "opening": 1,
    "restoring": 1, "sending": 1,
}  # fmt: skip
"""The steps of the engine's work in which hosts freeze, and how often a seed chooses them."""
_OPERATIONS = {"cleaning": ("", "reads"), "snapshot": ("writes", "syncs", "completes")}
"""Operations of a step in which hosts freeze: files that are read or written there may be deleted by others."""
_PAUSE_SECONDS = 6.0
"""Seconds between two stretches of work of the successor: it looks whether a snapshot is due, and it cleans."""
_FEWEST_STRETCHES, _MORE_STRETCHES = 2, 3


def with_takeovers(history: History, random: Random) -> History:
    """Return a history with takeovers, or the same one. The same choices make the same history."""
    if random.randrange(_ONE_IN):
        return history
    steps: list[Step] = []
    for step in history.steps:
        steps.append(step)
        if random.random() < _SHARE:
            steps += _takeover(random)
    return replace(history, steps=tuple(steps))


def _takeover(random: Random) -> Iterator[Step]:
    number = random.randrange(8)
    [step] = random.choices(list(_STEPS), list(_STEPS.values()))
    is_upkeep = step in _UPKEEP and random.randrange(4) > 0
    if is_upkeep:
        yield from (Step(kind, number, amount) for kind, amount in _BEFORE_UPKEEP)
    else:
        for kind in (kind for part in _BEFORE[: random.choice((2, 3))] for kind in part):
            yield Step(kind, number, random.choice((_SHORT, _LONG)) if kind == "pass" else random.randrange(64))
    operation = random.choice(_OPERATIONS.get(step, ("",)))
    later = random.choice((0, 0, 1, 2, 5))
    fault = Fault("freezes", operation, after=random.random() < 0.5, later=later, step=step)
    yield Step("strike", number, fault=fault)
    last = Step(random.choice(("rest", "work", "call")), number, random.randrange(64))
    yield Step("rest", number) if is_upkeep else last
    yield Step(TAKE_OVER, random.randrange(8), random.randrange(64))


def take_over(cluster: Cluster, step: Step, meanwhile: Callable[[float], object]) -> None:
    """Start a host beside a frozen one, or on another machine, which works with its tasks; then the frozen one wakes.

    `meanwhile` is called between stretches of work, with seconds that pass. The frozen one may end what its threads
    have to do before it looks at what came of it. Then the successor may die, and its tasks are opened over an empty
    disk: so it shows at once what the frozen one has done to the changelog.
    """
    frozen = [each for each in cluster.hosts if each.is_frozen and not each.is_of_earlier_program]
    if not frozen:
        return
    host = frozen[step.host % len(frozen)]
    successor = cluster.start((host.machine + step.amount % 2) % cluster.machines)
    _give_tasks(cluster, host, successor)
    for _ in range(_FEWEST_STRETCHES + step.amount // 2 % _MORE_STRETCHES):
        if _lives(successor):
            cluster.work_on(successor)
            meanwhile(_PAUSE_SECONDS)
    if host.is_frozen:  # its machine may have gone down
        cluster.wake(host)
    while step.amount & 8 and host.world.calls and _lives(host):
        cluster.run_call(host, 0)
    if step.amount & 16 and _lives(successor):
        cluster.kill(successor)
        cluster.replace_disk(successor.machine)
        third = cluster.start(successor.machine)
        _give_tasks(cluster, successor, third)
        if _lives(third):
            cluster.work_on(third)


def _give_tasks(cluster: Cluster, owner: Host, host: Host) -> None:
    for task in [name for name, each in cluster.owners.items() if each is owner]:
        if _lives(host):
            cluster.give(task, host)


def _lives(host: Host) -> bool:
    return not host.is_frozen and not host.is_dead
