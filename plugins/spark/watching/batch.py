"""Batch: what the tasks of a query did in one batch, or between heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.plugins.hosts.status import HostStatus
from penstock.plugins.runtime.report import TaskReport


@dataclass(frozen=True)
class Batch:
    """What a batch did: its number, how long it took, the reports of the tasks that it ran, and its hosts.

    `losses`: what happened to hosts that were lost in it. In continuous mode what the hosts did since their last
    heartbeats is one without a number, too.
    """

    number: int | None
    seconds: float
    reports: Sequence[TaskReport]
    hosts: tuple[HostStatus, ...]
    losses: Sequence[str] = ()
