"""Profile: what a profile found, as data. Times are seconds, without what the measuring itself took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock import RuntimeUnavailableError

from .functions import Function
from .sampler import Stack, check_flame, write_flame


@dataclass(frozen=True)
class StoreUse:
    """What one node did with one store: calls by method, and their time."""

    store: str
    calls: Mapping[str, int]
    seconds: float


@dataclass(frozen=True)
class NodeProfile:
    """One node, over all its tasks.

    `own_seconds` are those of the node itself: without the nodes below it, its stores and its serdes. `seconds` are
    with `stores` and `serde_seconds`: decoding at a source, encoding at a sink, and what stores read and write for the
    node. `schedule_calls`: how often its punctuators and timers were called; their time is its own. Both times are None
    for a node that fills a global store.
    """

    name: str
    kind: str
    functions: Sequence[str]
    records_in: int
    records_out: int
    dropped: int
    own_seconds: float | None
    serde_seconds: float
    stores: Sequence[StoreUse] = ()
    schedule_calls: int = 0

    @property
    def seconds(self) -> float | None:
        """The time of the node with its stores and serdes."""
        if self.own_seconds is None:
            return None
        return self.own_seconds + self.serde_seconds + sum(each.seconds for each in self.stores)


@dataclass(frozen=True)
class StoreProfile:
    """One store, over all its tasks. `commit_seconds`: serializing what nodes have put, before commits."""

    name: str
    calls: Mapping[str, int]
    seconds: float
    commit_seconds: float


@dataclass(frozen=True)
class Profile:
    """Where the time of a program goes.

    `records` are the records of the source topics. `seconds` and `phases` are of the run without hooks, `cpu_seconds`
    its CPU time; the phases that make up processing are divided as in the run with hooks. `hooked_seconds` and
    `hooked_cpu_seconds` are of that run. With `once` there was no other. `error` ended the run early. `why_no_samples`
    says why `functions` and `stacks` are empty, if they are.
    """

    application_id: str
    records: int
    seconds: float
    cpu_seconds: float
    hooked_seconds: float
    hooked_cpu_seconds: float
    once: bool
    commits: int
    phases: Mapping[str, float]
    nodes: Sequence[NodeProfile]
    stores: Sequence[StoreProfile]
    functions: Sequence[Function] = ()
    stacks: Mapping[Stack, float] = field(default_factory=dict)
    samples: int = 0
    why_no_samples: str = ""
    error: Exception | None = None

    @property
    def records_per_second(self) -> float:
        """Records by the time without hooks."""
        return self.records / max(self.seconds, 1e-9)

    @property
    def overhead(self) -> float | None:
        """How much more CPU time the run with hooks took, as a share; None with `once`."""
        if self.once or self.cpu_seconds <= 0:
            return None
        return self.hooked_cpu_seconds / self.cpu_seconds - 1.0

    def write_flame(self, path: str) -> None:
        """Write a flame graph: FILE.json for https://speedscope.app, FILE.folded or FILE.txt as collapsed stacks.

        Raises ConfigError for another name, RuntimeUnavailableError where no samples could be taken.
        """
        check_flame(Path(path))
        if self.why_no_samples:
            raise RuntimeUnavailableError(f"profile: there is no flame graph: {self.why_no_samples}")
        write_flame(self.stacks, Path(path), self.application_id)
