"""Which executor a worker belongs to, from made-up process trees and from real processes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.plugins.engine.host import executor_identity
from penstock.plugins.engine.host.executor_identity import (
    LOCAL_EXECUTOR,
    ExecutorIdentity,
    OrphanError,
    ProcFiles,
    PsCommand,
    describe,
    executor_id,
    find_identity,
    host_name,
    is_orphan,
    node_name,
    system_processes,
)

JVM = ["/usr/lib/jvm/17/bin/java", "-cp", "/spark/jars/*", "-Xmx512m"]
BACKEND = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
EXECUTOR = [*JVM, BACKEND, "--driver-url", "spark://d", "--executor-id", "7", "--hostname", "node-1", "--cores", "2"]
STANDALONE_WORKER = [*JVM, "org.apache.spark.deploy.worker.Worker", "spark://m:7077"]
DAEMON = ["/venv/bin/python3", "-m", "pyspark.daemon", "pyspark.worker"]


class Tree:
    """Processes as Linux shows them, in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        boot = root / "sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("1f0c9a2e-0000-4000-8000-000000000000\n")

    def add(self, pid: int, parent: int, command: list[str], start: int = 100, name: str = "java") -> None:
        directory = self.root / str(pid)
        directory.mkdir()
        after_the_name = ["S", str(parent), *["0"] * 17, str(start), *["0"] * 30]
        (directory / "stat").write_text(f"{pid} ({name}) {' '.join(after_the_name)}\n")
        (directory / "cmdline").write_bytes(b"".join(each.encode() + b"\0" for each in command))

    def identity(self, parent: int) -> ExecutorIdentity:
        return find_identity(parent, ProcFiles(self.root))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "proc")


def test_the_executor_is_the_nearest_jvm_above_the_daemon(tree: Tree) -> None:
    tree.add(10, 1, STANDALONE_WORKER, start=5)
    tree.add(20, 10, EXECUTOR, start=812345)
    tree.add(30, 20, DAEMON, name="a (strange) name")
    found = tree.identity(30)
    assert found == ExecutorIdentity("7", socket.gethostname(), 20, "812345", "1f0c9a2e", "node-1", daemon=30)
    assert found.text == f"7@{socket.gethostname()}/20/812345/1f0c9a2e/node-1"
    assert (host_name(found.text), node_name(found.text)) == (socket.gethostname(), "node-1")


def test_without_a_daemon_the_parent_is_the_jvm(tree: Tree) -> None:
    tree.add(20, 1, EXECUTOR)
    found = tree.identity(20)
    assert (found.executor, found.process, found.daemon) == ("7", 20, None)


def test_a_local_jvm_is_the_drivers(tree: Tree) -> None:
    tree.add(5, 1, ["python", "-m", "penstock", "run", "app"])
    tree.add(20, 5, [*JVM, "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"])
    tree.add(30, 20, DAEMON)
    assert (tree.identity(30).executor, tree.identity(30).process) == (LOCAL_EXECUTOR, 20)


def test_the_executors_id_may_be_one_argument(tree: Tree) -> None:
    tree.add(20, 1, [*JVM, BACKEND, "--executor-id=exec-3"])
    assert tree.identity(20).executor == "exec-3"


def test_where_no_jvm_is_visible_the_daemons_parent_counts(tree: Tree) -> None:
    tree.add(20, 1, ["launcher"], start=3)
    tree.add(30, 20, DAEMON, start=4)
    assert (tree.identity(30).process, tree.identity(30).daemon) == (20, 30)
    tree.add(40, 1, ["launcher"], start=6)
    assert (tree.identity(40).process, tree.identity(40).daemon) == (40, None)
    assert tree.identity(50).process == 50, "not even the parent is visible"


def test_a_recycled_pid_is_another_executor_and_a_new_daemon_is_not(tree: Tree, tmp_path: Path) -> None:
    other = Tree(tmp_path / "later")
    for each, start in ((tree, 100), (other, 900)):
        each.add(20, 1, EXECUTOR, start=start)
        each.add(30, 20, DAEMON)
        each.add(31, 20, DAEMON)
    assert tree.identity(30).text != other.identity(30).text
    assert tree.identity(30).text == tree.identity(31).text


def test_the_text_says_which_executor_it_is() -> None:
    text = ExecutorIdentity("a@b", "node", 4711, "12", "9f").text
    assert executor_id(text) == "a@b"
    assert describe(text) == "executor a@b on node (process 4711)"
    assert describe("") == "executor  on  (process ?)"


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="compares with /proc")
def test_ps_says_what_proc_says() -> None:
    from_ps, from_proc = PsCommand().find(os.getpid()), ProcFiles().find(os.getpid())
    assert from_ps is not None and from_proc is not None
    assert from_ps.parent == from_proc.parent == os.getppid()
    assert " ".join(from_ps.command) == " ".join(" ".join(from_proc.command).split())
    assert from_ps.start.count("-") == 4


def test_a_process_that_has_ended_is_not_found() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert system_processes().find(process.pid) is None
    assert PsCommand().find(process.pid) is None


def test_the_present_process_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = find_identity

    def counted(parent: int, processes: executor_identity.MachineProcesses) -> ExecutorIdentity:
        asked.append(parent)
        return real(parent, processes)

    monkeypatch.setattr(executor_identity, "find_identity", counted)
    # Tests that were started in the background may have outlived the leader of their process group.
    monkeypatch.setattr(executor_identity, "is_orphan", lambda *process: False)
    executor_identity._cached.cache_clear()
    assert executor_identity.executor_identity() == executor_identity.executor_identity()
    assert asked == [os.getppid()]


def test_a_worker_that_has_lost_its_daemon_stays_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = ExecutorIdentity(LOCAL_EXECUTOR, "h", 20, "5", "b", daemon=os.getppid())
    monkeypatch.setattr(executor_identity, "_cached", lambda process: daemon)
    assert executor_identity.executor_identity() == daemon
    monkeypatch.setattr(os, "getppid", lambda: 1)
    orphan = executor_identity.executor_identity()
    assert (orphan.text, orphan.daemon) == (daemon.text, None)


def test_an_orphan_of_a_daemon_is_told_from_others(tree: Tree) -> None:
    tree.add(1, 0, ["/sbin/init"])
    tree.add(20, 1, EXECUTOR)
    tree.add(30, 20, DAEMON)
    tree.add(40, 1, ["bash"])
    processes = ProcFiles(tree.root)
    assert not is_orphan(30, 30, processes), "its daemon is its parent"
    assert not is_orphan(20, 20, processes), "Spark runs without a daemon"
    assert not is_orphan(1, 40, processes), "no worker of a daemon"
    assert is_orphan(1, 31, processes)


def test_an_orphan_does_not_guess_its_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    executor_identity._cached.cache_clear()
    monkeypatch.setattr(executor_identity, "is_orphan", lambda *_: True)
    with pytest.raises(OrphanError, match="has ended"):
        executor_identity.executor_identity()
