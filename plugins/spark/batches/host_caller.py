"""HostCaller: in Spark's workers, the connections to the task hosts of the worker's executor."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial

from penstock.plugins.engine.host.client import Client, HostSpec, nothing
from penstock.plugins.engine.host.executor_identity import ExecutorIdentity, describe
from penstock.plugins.engine.host.place import LEASE_SECONDS, Process, digest_of, started_at
from penstock.plugins.engine.task.shipping import check_packages, packages_of

_clients: dict[tuple[str, str], Client] = {}
"""This process's connections to hosts, by their keys and digests."""


class HostCaller:
    """Reaches the task hosts of an executor, for a group function.

    `cargo` is a pickled `Cargo`. `family` is a digest of what all hosts of a query have in common: two queries, or two
    applications on one executor, do not share hosts. `title` names them for people. `lease_seconds`: see `HostSpec`.
    """

    def __init__(self, cargo: bytes, family: str, title: str, lease_seconds: float = LEASE_SECONDS) -> None:
        self.cargo = cargo
        self.family = family
        self.title = title
        self.lease_seconds = lease_seconds
        self.packages = tuple(packages_of(cargo).items())
        self.digest = hashlib.sha256(cargo).hexdigest()

    def check(self, identity: ExecutorIdentity) -> None:
        """Raise RuntimeUnavailableError if this executor's machine has other versions of what the program uses."""
        check_packages(self.packages, describe(identity.text))

    def client(self, slot: int, identity: ExecutorIdentity, scope: str = "") -> Client:
        """Return this process's connection to the host of a slot. Hosts of different scopes are not the same."""
        key = host_key(self.family, identity.text, slot, scope)
        found = _clients.get((key, self.digest))
        pids = [each for each in (identity.process, identity.daemon) if each is not None]
        if found is None or [each.pid for each in found.spec.watched] != pids:
            # A daemon that has ended took its hosts with it; the next ones watch the JVM alone.
            names = ("the executor's JVM", "PySpark's daemon")
            watched = tuple(Process(pid, started_at(pid), name) for pid, name in zip(pids, names, strict=False))
            if found is not None:
                found.close()
            found = Client(
                HostSpec(
                    key,
                    slot,
                    self.digest,
                    self.cargo,
                    self.title,
                    watched,
                    scope,
                    _set_up_for_spark(),
                    self.lease_seconds,
                )
            )
            _clients[key, self.digest] = found
        return found


def _set_up_for_spark() -> Callable[[], None]:
    """Return a function that lets `SparkFiles.get` work in a host; it imports PySpark only if there are files."""
    from pyspark import SparkFiles

    root = SparkFiles._root_directory
    if root is None or not SparkFiles._is_running_on_worker or not os.listdir(root):
        return nothing
    return partial(use_spark_files, root)


def use_spark_files(root: str) -> None:
    """Let `SparkFiles` find its files in `root`, as in one of Spark's workers."""
    from pyspark import SparkFiles

    SparkFiles._root_directory, SparkFiles._is_running_on_worker = root, True


def host_key(family: str, executor: str, slot: int, scope: str = "") -> str:
    """Return the key of a slot's host on an executor (see `Place`)."""
    return digest_of(family, executor, str(slot), scope)
