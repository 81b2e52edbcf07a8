"""The faults: what happens to an application, one function each; and the plan, which chooses them from a seed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from ..processes import is_alive
from . import plugin
from .app import INPUTS, PINGS, SLOW
from .backups import go_back
from .driver import TARGET, send, wait_for_end
from .offsets import lose_offsets
from .programs import GRACE_SECONDS, ID, TRANSACTION_SECONDS
from .topics import partitions

if TYPE_CHECKING:
    from .harness import Harness

LEASE_SECONDS = 15
HOST_LEASE_SECONDS = 60
"""The lease of a task host in continuous mode."""
IDLE = "idle"
"""The fault for which the broker keeps offsets as shortly as it can."""
SLOW_SECONDS, MOST_STOP_SECONDS = 1.0, 45.0
RETENTION_MINUTES, RETENTION_CHECK_SECONDS = 3, 5
END_SECONDS = 240.0
"""How long something that must end by itself may take, on a machine that has much else to do."""


@dataclass(frozen=True)
class Strike:
    """One round's fault: when it comes (after so many outputs of the round, or seconds), and how long a freeze
    takes."""

    kind: str
    seed: int
    after_outputs: int | None
    after_seconds: float
    freeze_seconds: float
    host: str | None
    """Where the application is started next; None: where it was."""

    def __str__(self) -> str:
        when = f"{self.after_seconds:.1f} s" if self.after_outputs is None else f"{self.after_outputs} outputs"
        freeze = f" for {self.freeze_seconds:.1f} s" if self.kind.startswith("freeze") else ""
        return f"{self.kind}{freeze} after {when}, then on host {self.host or 'as before'}"


def plan(seed: int, number: int, kinds: Sequence[str]) -> Strike:
    """Return the strike of a round; each kind comes once in every `len(kinds)` rounds."""
    turn, index = divmod(number, len(kinds))
    kind = random.Random(f"{seed} {turn}").sample(list(kinds), len(kinds))[index]
    chosen = random.Random(f"{seed} {number} {kind}")
    long = chosen.uniform(TRANSACTION_SECONDS + 1, LEASE_SECONDS + 5)
    return Strike(
        kind,
        chosen.randrange(1 << 30),
        chosen.randrange(2_000) if chosen.random() < 0.7 else None,
        chosen.uniform(0, 10),
        long if chosen.random() < 0.4 else chosen.uniform(0.2, 4),
        chosen.choice((None, None, "a", "b", f"new-{number}")),
    )


# ---------------------------------------------------------------------- one process, or all


def kill_tree(harness: Harness, strike: Strike) -> str | None:
    """Kill the driver, its JVM, its workers and its task hosts at once."""
    return _kill(harness, harness.driver.processes(), ends=True)


def kill_driver(harness: Harness, strike: Strike) -> str | None:
    """Kill the Python driver; the JVM, the workers and the task hosts notice by themselves, and must end."""
    assert harness.driver.process is not None
    others = harness.driver.processes()
    done = _kill(harness, [psutil.Process(harness.driver.process.pid)], ends=True)
    harness.expect_gone(others, "after their driver was killed")
    return done


def kill_jvm(harness: Harness, strike: Strike) -> str | None:
    """Kill Spark's JVM; the driver has to notice."""
    if not (jvm := harness.driver.jvm()):
        return None
    others = harness.driver.processes()
    done = _kill(harness, jvm)
    harness.driver.expect_end()
    harness.expect_gone(others, "after Spark's JVM was killed")
    return done


def kill_worker(harness: Harness, strike: Strike) -> str | None:
    """Kill one Python worker."""
    return _kill(harness, _one(harness.driver.workers(), strike))


def kill_workers(harness: Harness, strike: Strike) -> str | None:
    """Kill all Python workers at once."""
    return _kill(harness, harness.driver.workers())


def kill_daemon(harness: Harness, strike: Strike) -> str | None:
    """Kill what the workers are forked from."""
    return _kill(harness, harness.driver.daemons())


def freeze_tree(harness: Harness, strike: Strike) -> str | None:
    """Halt everything, as a suspended machine does."""
    return _freeze(harness.driver.processes(), strike)


def freeze_driver(harness: Harness, strike: Strike) -> str | None:
    """Halt the Python driver alone."""
    assert harness.driver.process is not None
    return _freeze([psutil.Process(harness.driver.process.pid)], strike)


def freeze_jvm(harness: Harness, strike: Strike) -> str | None:
    """Halt Spark's JVM alone."""
    return _freeze(harness.driver.jvm(), strike)


def freeze_worker(harness: Harness, strike: Strike) -> str | None:
    """Halt one Python worker."""
    return _freeze(_one(harness.driver.workers(), strike), strike)


def freeze_workers(harness: Harness, strike: Strike) -> str | None:
    """Halt all Python workers."""
    return _freeze(harness.driver.workers(), strike)


def second_driver(harness: Harness, strike: Strike) -> str | None:
    """Start a second driver beside the first, which must be refused."""
    # Without metrics: their port is the first one's, and would be the reason of the refusal.
    how = [*harness.driver.how(), "--metrics-port", "0"]
    done = harness.driver.command("run", TARGET, *how, host=f"rival-{strike.seed}")
    if done.returncode == 0 or "already run by" not in done.stderr:
        harness.fail(f"a second driver was not refused (exit code {done.returncode}): {done.stderr.strip()[-1500:]}")
    return "refused"


def stop(harness: Harness, strike: Strike) -> str | None:
    """Stop the application cleanly, and look at what it left."""
    return harness.stop()


def backlog(harness: Harness, strike: Strike) -> str | None:
    """Kill everything when all is processed. The next start finds a backlog of several inputs, and nothing else."""
    harness.settle()
    done = _kill(harness, harness.driver.processes(), ends=True)
    harness.ensure_running()
    harness.settle()
    return done


def long_rest(harness: Harness, strike: Strike) -> str | None:
    """Stop the application, or kill it, for longer than `state_cleanup_delay`: the next start uses its local state."""
    driver, is_killed = harness.driver, random.Random(strike.seed).random() < 0.5
    if is_killed:
        _kill(harness, driver.processes(), ends=True)
    else:
        harness.stop()
    directories = driver.state_directories()
    for each in directories:
        os.utime(f"{each}.lock", (0, 0))
    harness.next_host = driver.host
    harness.wait_for_outputs(1_000, "work after a long rest")
    if gone := [each for each, number in directories.items() if driver.state_directories().get(each) != number]:
        harness.problems.append(f"local state was removed after a long rest: {', '.join(map(str, gone))}")
    return f"{'killed' if is_killed else 'stopped'}, {len(directories)} copies of state"


# ---------------------------------------------------------------------- task hosts


def kill_host(harness: Harness, strike: Strike) -> str | None:
    """Kill one task host."""
    return _kill(harness, _one(harness.driver.hosts(), strike))


def kill_hosts(harness: Harness, strike: Strike) -> str | None:
    """Kill all task hosts at once. Their successors find several inputs with records."""
    done = _kill(harness, harness.driver.hosts())
    if done is not None:
        harness.feeder.backlog()
    return done


def freeze_host(harness: Harness, strike: Strike) -> str | None:
    """Halt one task host."""
    return _freeze(_one(harness.driver.hosts(), strike), strike)


def freeze_hosts(harness: Harness, strike: Strike) -> str | None:
    """Halt all task hosts."""
    return _freeze(harness.driver.hosts(), strike)


def stuck_host(harness: Harness, strike: Strike) -> str | None:
    """Halt one task host and never let it go on: it must be killed and replaced."""
    halted = _one(harness.driver.hosts(), strike)
    if not halted:
        return None
    send(halted, signal.SIGSTOP)
    harness.must_end(halted, "after it was frozen for good", feeding=True)
    return "killed by the worker that waited for it"


def second_hosts(harness: Harness, strike: Strike) -> str | None:
    """Take the places of all task hosts away, locks included, and the workers that are connected to them.

    New workers then start second hosts beside the first ones, which have the same tasks open. The first ones must end.
    """
    return _without_places(harness, locks=True)


def cleaned_places(harness: Harness, strike: Strike) -> str | None:
    """Remove the directories of all task hosts, as a cleaner of temporary files may; their locks stay held."""
    return _without_places(harness, locks=False)


def _without_places(harness: Harness, locks: bool) -> str | None:
    driver = harness.driver
    first = driver.hosts()
    if not first:
        return None
    for place in driver.places():
        if place.is_dir():
            shutil.rmtree(place)
        elif locks:
            place.unlink()
    harness.expect_gone(first, "after their places were removed")
    done = _kill(harness, driver.workers())
    return f"{len(first)} hosts without a place, workers killed: {done or 'none'}"


# ---------------------------------------------------------------------- the broker


def kill_broker(harness: Harness, strike: Strike) -> str | None:
    """Kill the broker, and start it again after a moment."""
    broker = harness.brokers[-1]
    broker.kill()
    away = random.Random(strike.seed).uniform(0, 5)
    time.sleep(away)
    broker.start()
    return f"away for {away:.1f} s and its start"


def freeze_broker(harness: Harness, strike: Strike) -> str | None:
    """Halt the broker; its connections stay open."""
    broker = harness.brokers[-1]
    broker.freeze()
    try:
        time.sleep(strike.freeze_seconds)
    finally:
        broker.resume()
    return f"{strike.freeze_seconds:.1f} s"


def idle(harness: Harness, strike: Strike) -> str | None:
    """Bring no input for longer than the broker keeps offsets, then kill all; the next start must find all positions.

    A clean stop would commit once more. On a busy machine more than a minute passes from the last commit to the
    openings of the next start.
    """
    harness.settle()
    time.sleep(60 * RETENTION_MINUTES + RETENTION_CHECK_SECONDS + 5)
    _kill(harness, harness.driver.processes(), ends=True)
    return f"no input for more than {RETENTION_MINUTES} min"


def slow(harness: Harness, strike: Strike) -> str | None:
    """Let a task fall behind whose records take long, and stop: that may wait for one record, not for all that wait.

    Meanwhile its neighbours must go on, and keep their transactions.
    """
    file = harness.directory / "data" / SLOW
    file.write_text(str(SLOW_SECONDS))
    try:
        pings = partitions({PINGS: INPUTS[PINGS]})

        def are_behind() -> bool:
            committed = harness.log.committed(ID, pings)
            waiting = [end - (committed[each] or 0) for each, end in harness.log.end_offsets(pings).items()]
            return min(waiting) * SLOW_SECONDS > MOST_STOP_SECONDS

        harness.wait_for(are_behind, "a slow task to fall behind", feeding=True)
        harness.feeder.pause()
        began = time.monotonic()
        done = harness.stop()
        took = time.monotonic() - began
    finally:
        file.unlink(missing_ok=True)
    if took > MOST_STOP_SECONDS:
        harness.problems.append(f"a stop beside a slow task took {took:.0f} s")
    return f"{done} in {took:.0f} s"


# ---------------------------------------------------------------------- zombies


def take_over(harness: Harness, strike: Strike) -> str | None:
    """Halt everything, have a successor start on another host, and let the first go on once that one works."""
    driver = harness.driver
    old, process = driver.processes(), driver.process
    assert process is not None
    driver.expect_end()
    send(old, signal.SIGSTOP)
    harness.start_elsewhere(strike)
    harness.wait_for_outputs(200, "the successor of a frozen driver to work")
    send(old, signal.SIGCONT)
    harness.must_end(old, "after waking up with a successor at work")
    return f"{len(old)} processes"


def zombies(harness: Harness, strike: Strike) -> str | None:
    """Halt task hosts, kill all else, have a successor work until the grace period is over, and let the zombies wake.

    All hosts are halted anywhere, or one halts itself at a call around a commit (`plugin`). In the end a third machine,
    which has nothing but the changelog, takes over.
    """
    driver = harness.driver
    frozen, where = _halt(harness, strike)
    if not frozen:
        return None
    frozen_at = time.monotonic()
    files = harness.changelog_files()
    pids = {each.pid for each in frozen}
    driver.expect_end()
    send([each for each in driver.processes() if each.pid not in pids], signal.SIGKILL)
    assert driver.process is not None
    driver.process.wait()
    harness.start_elsewhere(strike)
    harness.wait_for_outputs(1_000, "the successor of a frozen task host to work")
    away = TRANSACTION_SECONDS if harness.brokers else GRACE_SECONDS
    wait = away + 1 + frozen_at - time.monotonic()
    time.sleep(max(0.0, wait))
    harness.wait_for(
        lambda: not (files & harness.changelog_files()), "the successor to clean the changelog", feeding=True
    )
    alive = [each for each in frozen if is_alive(each)]
    if not alive:
        harness.fail(f"the task hosts that were halted {where} did not live until their successor had cleaned up")
    at_rest = random.Random(f"{strike.seed} rest").random() < 0.6
    if at_rest:
        # Then all that the successor wrote is old when the zombies wake up.
        harness.settle()
        harness.stop()
        time.sleep(GRACE_SECONDS + 1)
    send(frozen, signal.SIGCONT)
    harness.must_end(frozen, "after waking up as a zombie")
    if not at_rest:
        harness.wait_for_outputs(200, "work after a zombie woke up")
        _kill(harness, driver.processes(), ends=True)
    harness.next_host = f"third-{strike.seed}"
    return f"{len(alive)} woke up, halted {where} with a successor {'at rest' if at_rest else 'at work'}"


def _halt(harness: Harness, strike: Strike) -> tuple[list[psutil.Process], str]:
    """Halt task hosts; return them, and where they are."""
    calls = plugin.CALLS if harness.options.changelog == "directory" else ("write",)
    # One that is halted anywhere may be writing to the local log, which has one writer: its successor could only wait.
    anywhere = ("anywhere",) if harness.options.log == "kafka" else ()
    choice = random.Random(strike.seed)
    call, subtopology = choice.choice(calls + anywhere), choice.randrange(2)
    driver = harness.driver
    if call == "anywhere":
        frozen = driver.hosts()
        send(frozen, signal.SIGSTOP)
        return frozen, call
    data = harness.directory / "data"
    (data / plugin.ORDER).write_text(f"{call} {subtopology}")

    def halted() -> bool:
        return any(data.glob(f"{plugin.HALTED}.*")) or harness.driver.is_down

    harness.wait_for(halted, f"a task host of sub-topology {subtopology} to reach {call}", feeding=True)
    (data / plugin.ORDER).unlink(missing_ok=True)
    found = []
    for path in data.glob(f"{plugin.HALTED}.*"):
        found.append(psutil.Process(int(path.suffix[1:])))
        path.unlink()
    return found, f"at {call} in sub-topology {subtopology}"


def rival(harness: Harness, strike: Strike) -> str | None:
    """Halt the driver, Spark and its workers, but not the task hosts, and have a successor start on another host.

    In continuous mode the first hosts go on for as long as their lease. Wake the driver once the successor works.
    """
    driver = harness.driver
    old, working = driver.processes(), {each.pid for each in driver.hosts()}
    driver.expect_end()
    halted = [each for each in old if each.pid not in working]
    send(halted, signal.SIGSTOP)
    harness.start_elsewhere(strike)
    harness.wait_for(lambda: bool(driver.hosts()), "the task hosts of the successor of a frozen driver", feeding=True)
    harness.wait_for_outputs(2_000, "work of the successor of a frozen driver beside the first hosts")
    answering = driver.starts
    time.sleep(strike.freeze_seconds)
    if driver.starts != answering or driver.is_down:
        harness.fail(f"the successor ended beside the first hosts: {driver.said()[-1500:]}")
    send(halted, signal.SIGCONT)
    harness.must_end(old, "after waking up with a successor at work")
    return f"{len(halted)} processes, and {len(working)} hosts went on"


def outlive_lease(harness: Harness, strike: Strike) -> str | None:
    """Halt the driver, Spark and its workers for longer than the lease of the task hosts, which must end."""
    driver = harness.driver
    hosts = driver.hosts()
    pids = {each.pid for each in hosts}
    halted = [each for each in driver.processes() if each.pid not in pids]
    send(halted, signal.SIGSTOP)
    try:
        if left := wait_for_end(hosts, HOST_LEASE_SECONDS + 30):
            harness.problems.append(f"{len(left)} task hosts outlived their lease")
    finally:
        send(halted, signal.SIGCONT)
    return f"{len(hosts)} hosts ended"


def hosts_past_lease(harness: Harness, strike: Strike) -> str | None:
    """Halt all task hosts and workers for longer than the hosts' lease, so that nobody replaces them before they
    wake."""
    driver = harness.driver
    halted = [*driver.hosts(), *driver.workers()]
    send(halted, signal.SIGSTOP)
    try:
        time.sleep(HOST_LEASE_SECONDS + 5)
    finally:
        send(halted, signal.SIGCONT)
    return f"{len(halted)} processes"


# ---------------------------------------------------------------------- helpers


def _one(processes: list[psutil.Process], strike: Strike) -> list[psutil.Process]:
    ordered = sorted(processes, key=lambda each: each.pid)
    return [random.Random(strike.seed).choice(ordered)] if ordered else []


def _kill(harness: Harness, processes: list[psutil.Process], ends: bool = False) -> str | None:
    if not processes:
        return None
    if ends:
        harness.driver.expect_end()
    send(processes, signal.SIGKILL)
    if ends:
        assert harness.driver.process is not None
        harness.driver.process.wait()
    wait_for_end(processes, END_SECONDS)
    return f"{len(processes)} processes"


def _freeze(processes: list[psutil.Process], strike: Strike) -> str | None:
    if not processes:
        return None
    send(processes, signal.SIGSTOP)
    try:
        time.sleep(strike.freeze_seconds)
    finally:
        send(processes, signal.SIGCONT)
    return f"{len(processes)} processes"


Fault = Callable[["Harness", Strike], str | None]

FAULTS: dict[str, Fault] = {
    "kill tree": kill_tree,
    "kill driver": kill_driver,
    "kill jvm": kill_jvm,
    "kill worker": kill_worker,
    "kill workers": kill_workers,
    "kill daemon": kill_daemon,
    "freeze tree": freeze_tree,
    "freeze driver": freeze_driver,
    "freeze jvm": freeze_jvm,
    "freeze worker": freeze_worker,
    "freeze workers": freeze_workers,
    "second driver": second_driver,
    "kill host": kill_host,
    "kill hosts": kill_hosts,
    "freeze host": freeze_host,
    "freeze hosts": freeze_hosts,
    "stuck host": stuck_host,
    "second hosts": second_hosts,
    "cleaned places": cleaned_places,
    "stop": stop,
    "long rest": long_rest,
    "backlog": backlog,
    "kill broker": kill_broker,
    "freeze broker": freeze_broker,
    "take over": take_over,
    "zombies": zombies,
    "rival": rival,
    "outlive lease": outlive_lease,
    "hosts past lease": hosts_past_lease,
    "lose offsets": lose_offsets,
    "go back": go_back,
    IDLE: idle,
    "slow": slow,
}
"""All faults by name; each returns what it did, None when there was nothing to do it to."""
NEEDS_WORKERS = ("kill worker", "kill workers", "kill daemon", "freeze worker", "freeze workers")
NEEDS_HOSTS = (
    "kill host", "kill hosts", "freeze host", "freeze hosts", "stuck host", "second hosts", "cleaned places", "zombies",
    "rival", "outlive lease", "hosts past lease", "slow",
)  # fmt: skip


def kinds(log: str, mode: str, engine: str = "spark") -> list[str]:
    """Return the faults that apply to a log, a mode and an engine, unless others are named.

    Lost offsets and restored backups are left to those who ask for them: what is processed again because of them is
    judged less strictly. So is having no input, with a broker that soon forgets offsets: other faults keep an
    application away for longer; and slow records, which are only in one program. On the local log, a host that is
    frozen for good may be the one writer: the others give up before it is killed; and a driver that is frozen keeps its
    lease.
    """
    left_out = {"lose offsets", "go back", IDLE, "slow"}
    if log != "kafka":
        left_out |= {"kill broker", "freeze broker", "take over", "stuck host", "rival", "hosts past lease"}
    if mode != "continuous":
        left_out |= {"outlive lease", "hosts past lease"}
    if engine != "spark":
        left_out |= {"kill jvm", "freeze jvm", *NEEDS_WORKERS, *NEEDS_HOSTS}
    return [kind for kind in FAULTS if kind not in left_out]
