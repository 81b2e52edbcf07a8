"""Settling: everything is processed once no fault strikes any more, or the history fails."""

from __future__ import annotations

from .checks import Checks
from .cluster import Cluster
from .log import SimulatedLog
from .timeline import Timeline

_QUIET_ROUNDS, _PATIENT_ROUNDS, _MOST_ROUNDS = 16, 100, 2_000
"""Rounds without any progress after which a cluster has settled, and after which it has not where records wait, since
failed ones may be tried again; and rounds after which it never will."""


def settle(cluster: Cluster, checks: Checks, log: SimulatedLog, timeline: Timeline) -> None:
    """Let everything be processed, as `SimulatedCluster.settle` says. Raises SimulationFailure."""
    quiet = 0
    for host in cluster.processes():
        host.refusals = 0
    for _ in range(_MOST_ROUNDS):
        before = checks.progress()
        cluster.complete()
        cluster.drive()
        for host in cluster.live():
            cluster.work(host)
            while host.world.calls and not host.is_frozen:
                cluster.run_call(host, 0)
        log.write_markers()
        checks.positions_go_on()
        quiet = 0 if checks.progress() != before else quiet + 1
        timeline.pass_by(0.1 if quiet < _QUIET_ROUNDS // 2 else 30.0)
        if quiet < _QUIET_ROUNDS:
            continue
        if cluster.frozen():
            cluster.wake(cluster.frozen()[0])
            quiet = 0
        elif quiet >= _PATIENT_ROUNDS or checks.is_all_read():
            checks.all_is_read()
            _let_replicas_catch_up(cluster, checks, timeline)
            _let_standbys_catch_up(cluster, timeline)
            return
    raise timeline.failure("it never comes to rest, though no fault strikes any more")


def _let_standbys_catch_up(cluster: Cluster, timeline: Timeline) -> None:
    for host in list(cluster.standbys):
        for _ in range(_QUIET_ROUNDS):
            timeline.pass_by(30.0)
            cluster.let(host, host.work)
        if host.unsettled():
            raise timeline.failure(f"{host} has not all copies, and no fault strikes any more: {host.unsettled()}")


def _let_replicas_catch_up(cluster: Cluster, checks: Checks, timeline: Timeline) -> None:
    for host in cluster.live_followers():
        cluster.let(host, host.work)
        for task, commit in checks.commits().items():
            lacking = checks.logged_stores(task) - host.stores(task)
            if host.version(task) != commit.version or lacking:
                raise timeline.failure(
                    f"{host} shows version {host.version(task)} of task {task}, whose last commit is {commit.version}, "
                    f"and lacks the stores {sorted(lacking)}; no fault strikes any more"
                )
