"""Other processes on a local log, for tests to stop and kill; each says on its output how far it is."""

from __future__ import annotations

import os
import signal
import sys

from penstock.errors import FencedError
from penstock.log import Commit
from penstock.plugins.logs.local import LocalLog
from penstock.record import OutputBatch, TopicPartition
from tests.processes import Child

RECORDS = 20
"""Outputs of each commit of `commit_for_ever`: to partition n of topic `out`, valued with the commit's number."""


def start(role: str, *arguments: object) -> Child:
    """Run a role in a process of its own, killed at the end of a block."""
    return Child("-m", "tests.logs.processes", role, *arguments)


def commit_for_ever(directory: str, task: str, partitions: str) -> None:
    """Commit RECORDS outputs to each partition of `out` again and again; the position counts the commits."""
    log = LocalLog(directory)
    inputs = [TopicPartition("in", int(task))]
    committer = log.open_committer("app", f"0_{task}", inputs)
    count = committer.committed.positions[inputs[0]] if committer.committed else 0
    targets = [[partition] for partition in range(int(partitions)) for _ in range(RECORDS)]
    while True:
        count += 1
        value = b"%d" % count * 200
        size = len(targets)
        outputs = OutputBatch("out", [task.encode()] * size, [value] * size, [count] * size, None, list(targets))
        committer.commit(Commit({inputs[0]: count}, f"{count:012d}-x", b"%d" % count), [outputs])
        print(count, flush=True)


def commit_when_told(directory: str) -> None:
    """Open a task, then wait for a line, then commit."""
    log = LocalLog(directory)
    partition = TopicPartition("in", 0)
    committer = log.open_committer("app", "0_0", [partition])
    print("open", flush=True)
    sys.stdin.readline()
    try:
        committer.commit(Commit({partition: 99}, "zombie"), [OutputBatch("out", [b"z"], [b"zombie"], [0])])
    except FencedError as error:
        print(f"fenced: {error}", flush=True)
    else:
        print("committed", flush=True)


def stop_while_writing(directory: str) -> None:
    """Stop in the middle of a write transaction; when let go on, commit it."""
    log = LocalLog(directory)
    with log._storage.write("test") as (transaction, _):
        transaction.put("meta", b"app\0written", b"yes")
        print("writing", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    print("written", flush=True)


def grow(directory: str, size: str) -> None:
    """Append until the log's file has a size that others did not expect."""
    log = LocalLog(directory, {"map_size": str(2 * int(size))})
    while os.path.getsize(os.path.join(directory, "data.mdb")) < int(size):
        log.append(OutputBatch("out", [b"k"], [b"v" * 100_000], [0], None, [[0]]))
    print("grown", flush=True)


def take_lease(directory: str) -> None:
    """Take a lease and keep it until killed."""
    LocalLog(directory).lease("app", "the first driver", 3_600_000)
    print("leased", flush=True)
    signal.pause()


def fill_up(directory: str, limit: str) -> None:
    """Append under a file size limit until it fails, and say how many appends were done and why no more."""
    import resource

    log = LocalLog(directory)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    count = 0
    try:
        while True:
            log.append(OutputBatch("out", [b"k"] * 10, [b"v" * 2000] * 10, [count] * 10))
            count += 1
    except Exception as error:
        print(count, flush=True)
        print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
