"""Runs an application, strikes it round after round while input comes in, and has the oracle judge what it leaves."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import psutil

from penstock.errors import PenstockError
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.testing.kafka_broker import KafkaBroker, KafkaCluster

from ..kafka.clients import create_topics
from ..processes import is_alive
from . import plugin, watching
from .driver import Driver, send, wait_for_end
from .dsl_oracle import DslOracle
from .faults import (
    END_SECONDS,
    FAULTS,
    IDLE,
    NEEDS_HOSTS,
    NEEDS_WORKERS,
    RETENTION_CHECK_SECONDS,
    RETENTION_MINUTES,
    Strike,
    kinds,
    plan,
)
from .oracle import Oracle, Verdict
from .programs import ID, PROGRAMS
from .topics import Feeder, Reader

PATIENCE = 240.0
"""Seconds after which waiting for a condition is a failure."""
_FORGETFUL = {
    "offsets.retention.minutes": str(RETENTION_MINUTES),
    "offsets.retention.check.interval.ms": str(RETENTION_CHECK_SECONDS * 1000),
}


@dataclass(frozen=True)
class Options:
    """What is run, and how often it is struck: `rounds`, or as many as fit into `minutes`; `faults` are names (none:
    all that apply). `brokers`: number of Kafka brokers; inputs of a task are led by different ones."""

    log: str = "local"
    rounds: int = 20
    seed: int = 1
    guarantee: str = "exactly_once"
    changelog: str = "directory"
    minutes: float | None = None
    faults: Sequence[str] = ()
    program: str = "processor"
    mode: str = "batch"
    backend: str = "lmdb"
    brokers: int = 1
    engine: str = "spark"

    def kinds(self) -> list[str]:
        """Return the faults to choose from."""
        return list(self.faults) or kinds(self.log, self.mode, self.engine)


@dataclass
class Tally:
    """What was done, and everything that was wrong."""

    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    inputs: int = 0
    repeated: int = 0
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return self.verdict.is_good

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        verdict = self.verdict
        return (
            f"rounds {self.rounds} inputs {self.inputs} lost {verdict.lost} duplicated {verdict.repeated} wrong "
            f"{len(verdict.wrong)} ({faults}; {self.repeated} repeated as the guarantee allows)"
        )


class Harness:
    """One log, one application, many strikes."""

    def __init__(self, directory: Path, options: Options, say: Callable[[str], None]) -> None:
        self.directory = directory
        self.options = options
        self.say = say
        self.problems: list[str] = []
        self.repeated = 0
        """How many inputs have outputs more than once, where that is allowed."""
        self.again: Counter[str] | None = None
        """How often inputs may be processed again, because a reset said so; None before the first."""
        self.next_host: str | None = None
        self._orphans: list[tuple[list[psutil.Process], str, list[Path]]] = []
        self._hosts = ["a"]
        self._before: list[str] = []
        self._poll_seconds = 0.02 if options.log == "local" else 0.1
        self.kafka: KafkaBroker | KafkaCluster | None = None
        location = "local:log"
        if options.log == "kafka":
            self.kafka = _kafka(directory / "kafka", options)
            self.kafka.start()
            location = f"kafka:{self.kafka.bootstrap}"
        try:
            changelog = f"{plugin.CHANGELOG}:changelog" if options.changelog == "directory" else "topic:"
            self.driver = Driver(
                directory, location, options.guarantee, changelog, options.program, options.mode, options.backend,
                options.engine,
            )  # fmt: skip
            self.log = open_log(self.driver.settings)
            program = PROGRAMS[options.program]
            create_topics(self.log, {**program.inputs, **program.outputs}, self.kafka)
            self.reader = Reader(self.log, program)
            self.feeder = Feeder(self.driver.settings, program, options.seed)
        except BaseException:
            self._end_kafka()
            raise

    # ------------------------------------------------------------------ rounds

    def round(self, strike: Strike) -> str | None:
        """Let the application work, strike, let it recover while input goes on, and judge it when all is processed.

        Return what was done; None when there was nothing to strike.
        """
        self.next_host = strike.host
        self.ensure_running()
        self.feeder.resume()
        self._await_moment(strike)
        done = FAULTS[strike.kind](self, strike)
        self.wait_for_outputs(100, "work after the fault")
        self.settle()
        watching.expect_status_of_driver(self)
        self._check_orphans()
        self.judge()
        return done

    def _await_moment(self, strike: Strike) -> None:
        if strike.kind in NEEDS_WORKERS:
            self.wait_for(lambda: bool(self.driver.workers()), "a worker to strike", feeding=True)
        if strike.kind in NEEDS_HOSTS:
            self.wait_for(lambda: bool(self.driver.hosts()), "a task host to strike", feeding=True)
        if strike.after_outputs is None:
            time.sleep(strike.after_seconds)
        else:
            self.wait_for_outputs(strike.after_outputs, "some outputs before the fault")
        # One that was struck before it worked says how it copes with that; one that has ended has nothing to strike.
        self.ensure_running()

    def settle(self) -> None:
        """Stop the input, and wait until everything is processed."""
        self.feeder.pause()
        self.wait_for(self.reader.is_drained, "everything to be processed")
        self.wait_for(self._has_come, "what waits for time to come out")

    def _has_come(self) -> bool:
        """Return whether no result waits for time to pass. If one waits for records, append some."""
        self.reader.read()
        oracle = self._oracle()
        if oracle.awaits_time:
            time.sleep(1.0)  # an outer join looks once a second
            self.feeder.push()
            self.wait_for(self.reader.is_drained, "everything to be processed")
            return False
        return not oracle.awaits_rest and self.reader.is_drained()

    def _oracle(self) -> Oracle | DslOracle:
        rows = self.reader.inputs, self.reader.outputs
        if self.options.program == "dsl":
            return DslOracle(*rows)
        return Oracle(*rows, self.options.guarantee == "exactly_once", self.again)

    def judge(self, hosts: Iterable[str] = ()) -> Verdict:
        """Have the oracle judge the outputs, and what the stores hold on hosts; all must be processed. Return its
        verdict."""
        self.reader.read()
        stores = {}
        for host in hosts:
            try:
                stores[f"host {host}"] = self.driver.stores(host)
            except RuntimeError as error:
                self.problems.append(str(error))
        verdict = self._oracle().judge(stores)
        verdict.wrong += self.problems
        self.problems.clear()
        if self.options.guarantee != "exactly_once":
            self.repeated, verdict.repeated = verdict.repeated, 0
        if not verdict.is_good:
            raise WrongError(verdict)
        return verdict

    # ------------------------------------------------------------------ the application

    def ensure_running(self) -> None:
        """Start the application again if it has ended, where the round says. Raises WrongError if nobody asked for
        that."""
        if not self.driver.is_down:
            return
        if (ended := self.driver.unexpected_end()) is not None:
            self.fail(ended)
        self._start(self.next_host or self.driver.host)

    def start_elsewhere(self, strike: Strike) -> None:
        """Start a successor on another host than the last one."""
        self._start(strike.host if strike.host not in (None, self.driver.host) else f"elsewhere-{strike.seed}")

    def _start(self, host: str | None) -> None:
        assert host is not None
        self.next_host = None
        if host not in self._hosts:
            self._hosts.append(host)
        self._before = self.driver.left_behind()
        if not self.driver.processes(every_start=True):
            # Where something still works, the first records could be processed before the last are there.
            self.feeder.backlog()
        self.driver.start(host)

    def stop(self) -> str:
        """Stop the application as an operator does; everything of it must be gone."""
        processes = self.driver.processes()
        try:
            code = self.driver.terminate(PATIENCE)
        except subprocess.TimeoutExpired:
            self.problems.append(f"start {self.driver.starts} did not stop within {PATIENCE:.0f} s after SIGTERM")
            send(self.driver.processes(), 9)  # type: ignore[arg-type]
            return "stopped in vain"
        if code != 0:
            self.problems.append(
                f"start {self.driver.starts}: exit code {code} after SIGTERM: {self.driver.said()[-600:]}"
            )
        self.must_end([*processes, *self.driver.processes()], "after a clean stop")
        if left := self.driver.left_behind(self._before):
            self.problems.append(f"temporary files after a clean stop: {', '.join(left)}")
        return "stopped"

    def expect_refusal(self, host: str, when: str) -> None:
        """Start the application on a host, and have it end with an error that says what to do, and nothing done."""
        answered = self.reader.answered()
        self._start(host)
        self.driver.expect_end()
        assert self.driver.process is not None
        try:
            code = self.driver.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = 0
        said = self.driver.said()
        if code == 0 or ID not in said or "penstock reset" not in said or self.reader.answered() != answered:
            self.fail(f"the start {when} was not refused (exit code {code}): {said[-1500:]}")

    def fail(self, what: str) -> NoReturn:
        """End the run because of this, and of what was wrong before. Raises WrongError."""
        raise WrongError(Verdict(wrong=[*self.problems, what]))

    def expect_gone(self, processes: list[psutil.Process], when: str) -> None:
        """Have the end of the round see that processes have ended by themselves, and that task hosts among them left
        nothing; their successors do not wait for that."""
        self._orphans.append((processes, when, self.driver.places()))

    def _check_orphans(self) -> None:
        orphans, self._orphans = self._orphans, []
        for processes, when, places in orphans:
            self.must_end(processes, when)
            # A host removes the lock file last; a successor in the same place has made it again.
            left = {str(each) for each in places if each.exists()} - {str(each) for each in self.driver.held_places()}
            self.problems += [f"{each} is left {when}" for each in sorted(left)]

    def must_end(self, processes: Iterable[psutil.Process], when: str, feeding: bool = False) -> None:
        """Wait until processes have ended by themselves; those that do not are a problem, and killed.

        `feeding`: input goes on meanwhile, and the application is started again if it ends.
        """
        processes = list(processes)
        if feeding:
            self.wait_for(lambda: not any(map(is_alive, processes)), f"processes to end {when}", feeding=True)
        for each in wait_for_end(processes, END_SECONDS):
            self.problems.append(f"process {_describe(each)} still there {END_SECONDS:.0f} s {when}")
            send([each], 9)  # type: ignore[arg-type]

    def changelog_files(self) -> set[str]:
        """Return the files of the `directory` changelog."""
        return {str(path) for path in (self.directory / "data" / "changelog").rglob("*.delta")}

    # ------------------------------------------------------------------ waiting

    def wait_for_outputs(self, count: int, what: str) -> None:
        """Wait until there are so many more outputs; the application is started again if it ends."""
        start = self.reader.answered()
        self.wait_for(lambda: self.reader.answered() - start >= count, what, feeding=True)

    def wait_for(self, condition: Callable[[], bool], what: str, feeding: bool = False) -> None:
        """Poll until a condition holds. Raises WrongError when that takes too long."""
        deadline = time.monotonic() + PATIENCE
        if feeding:
            self.feeder.resume()
        while True:
            try:
                if condition():
                    return
            except PenstockError:
                pass  # a broker that is away; asked again
            self.ensure_running()
            if time.monotonic() > deadline:
                self.fail(f"waited {PATIENCE:.0f} s in vain for {what}; the driver: {self.driver.said()[-600:]}")
            time.sleep(self._poll_seconds)

    # ------------------------------------------------------------------ the end

    def finish(self) -> Verdict:
        """Stop the application cleanly, and judge everything: outputs, every host's stores, and what is left behind."""
        self.ensure_running()
        self.settle()
        watching.stop(self)
        if self.reader.open_transactions():
            self.problems.append("there are transactions that nobody will end")
        self.problems += [f"{path} is still locked" for path in self.driver.locks()]
        left = self.driver.left_behind()
        # A JVM that is killed leaves its local directories, and Spark removes none of another process. Where penstock
        # says where they are, the next start does; here SPARK_LOCAL_DIRS does.
        of_spark = [each for each in left if each.startswith(("spark/blockmgr-", "spark/spark-"))]
        self.problems += [f"temporary file {each} is left of a driver" for each in left if each not in of_spark]
        self.say(
            f"drivers printed {self.driver.tracebacks()} tracebacks; killed JVMs left {len(of_spark)} directories of "
            "Spark's"
        )
        # From the changelog alone, before any host's copy is opened; then where it ran first, and last.
        return self.judge(dict.fromkeys(["restored", self._hosts[0], *self._hosts[-3:]]))

    def close(self) -> None:
        """Kill everything that runs."""
        try:
            self.driver.close()
            self.feeder.close()
            self.log.close()
        finally:
            self._end_kafka()

    @property
    def brokers(self) -> list[KafkaBroker]:
        """The brokers; the first one is the controller of the others."""
        return self.kafka.brokers if isinstance(self.kafka, KafkaCluster) else [self.kafka] if self.kafka else []

    def _end_kafka(self) -> None:
        for broker in reversed(self.brokers):
            broker.kill()


def _kafka(directory: Path, options: Options) -> KafkaBroker | KafkaCluster:
    settings = _FORGETFUL if IDLE in options.faults else None
    if options.brokers == 1:
        return KafkaBroker(directory, options=settings)
    return KafkaCluster(options.brokers, directory, options=settings)


class WrongError(Exception):
    """Something was wrong; `verdict` says what."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


def run(options: Options, say: Callable[[str], None] = print) -> Tally:
    """Run rounds in a new directory, which stays if something is wrong. Rounds that find nothing to strike do not
    count."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-crash-"))
    tally = Tally()
    began = time.monotonic()
    harness = Harness(directory, options, say)
    keep = True
    number = 0
    try:
        while _goes_on(options, tally, number, began):
            strike = plan(options.seed, number, options.kinds())
            number += 1
            say(f"round {number}: {strike}")
            start = time.monotonic()
            done = harness.round(strike)
            if done is not None:
                tally.rounds += 1
                tally.faults[strike.kind] += 1
            say(
                f"  {done or 'nothing to strike'}; {len(harness.reader.inputs)} inputs, "
                f"{time.monotonic() - start:.1f} s"
            )
        tally.verdict = harness.finish()
        keep = False
    except WrongError as error:
        tally.verdict = error.verdict
    except (KeyboardInterrupt, SystemExit):
        keep = False
        raise
    finally:
        tally.inputs, tally.repeated = len(harness.reader.inputs), harness.repeated
        harness.close()
        if keep:
            say(
                f"kept: {directory}; driver.log is what the drivers said, data/ has the state, kafka/ the broker's "
                "data:"
            )
            say(
                f"  python -m penstock.testing.kafka_broker --brokers {options.brokers} --directory "
                f"{directory}/kafka runs Kafka again"
            )
            say(f"  the same again: python -m tests.crash {_arguments(options)}")
        else:
            subprocess.run(["rm", "-rf", str(directory)], check=False)
    return tally


def _goes_on(options: Options, tally: Tally, number: int, began: float) -> bool:
    if options.minutes is not None:
        return time.monotonic() - began < options.minutes * 60
    return tally.rounds < options.rounds and number < 3 * options.rounds


def _arguments(options: Options) -> str:
    faults = "".join(f" --fault '{each}'" for each in options.faults)
    return (
        f"--engine {options.engine} --program {options.program} --mode {options.mode} "
        f"--store-backend {options.backend} --log {options.log} --brokers {options.brokers} "
        f"--changelog {options.changelog} "
        f"--guarantee {options.guarantee} --rounds {options.rounds} --seed {options.seed}{faults}"
    )


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({process.status()}: {' '.join(process.cmdline())[:120]})"
    except psutil.Error:
        return str(process.pid)
