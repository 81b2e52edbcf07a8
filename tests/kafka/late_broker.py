"""`python -m tests.kafka.late_broker --rounds N`: exit 0 only if every start before the broker got through, and every
one while it was away."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from penstock.plugins.testing.kafka.process import free_ports
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..processes import Child, python
from .clients import make_topic
from .early_starter import ORDERS, TOTALS
from .names import fresh_name

_ANSWER_SECONDS = 180.0


class Start:
    """One start: a process, how many seconds the broker is later than it, and what it says."""

    def __init__(self, process: subprocess.Popen[str], name: str, late: float) -> None:
        self.process = process
        self.name = name
        self.late = late
        self.lines: list[str] = []
        """What it writes to standard error."""
        self.problem = ""
        self._output: list[str] = []
        for stream, lines in ((process.stdout, self._output), (process.stderr, self.lines)):
            threading.Thread(target=_take, args=(stream, lines), daemon=True).start()

    def says(self, word: str, count: int = 1) -> None:
        """Wait until it has said a word so often, and note it as a problem if it never does."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while self._output.count(word) < count and not self.problem:
            if self.process.poll() is not None or time.monotonic() > deadline:
                code = self.process.poll()
                end = f"ended with {code}" if code is not None else f"said nothing for {_ANSWER_SECONDS:.0f} s"
                self.problem = f"{end} before {word!r} number {count}: {' | '.join(self.lines[-8:])}"
            time.sleep(0.02)

    def waits(self) -> int:
        """Return how often it has said that it waits for the broker, or has ended."""
        return sum(line.startswith("waiting for ") for line in self.lines) + (self.process.poll() is not None)

    def ask(self, word: str) -> None:
        """Have it ask everything once more."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `says` will find why

    def ends(self) -> None:
        """Let it end, and note another exit code than 0 as a problem."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            code = self.process.wait(_ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self.problem = self.problem or f"did not end in {_ANSWER_SECONDS:.0f} s"
        else:
            if code and not self.problem:
                self.problem = f"ended with {code}: {' | '.join(self.lines[-8:])}"


def start_before(
    broker: KafkaBroker, stack: ExitStack, directory: Path, lates: list[float], try_seconds: float = 0.0
) -> list[Start]:
    """Start a process for each of `lates`, so many seconds before the broker, which does not run; return when all are
    prepared or failed."""
    starts = []
    begin = time.monotonic()
    for late in sorted(lates, reverse=True):
        _sleep_until(begin + max(lates) - late)
        name = fresh_name("early")
        process = python("tests.kafka.early_starter", broker.bootstrap, name, directory, str(try_seconds))
        starts.append(Start(stack.enter_context(process), name, late))
    _sleep_until(begin + max(lates))
    broker.start()
    for start in starts:
        start.says("prepared")
    return starts


def run_before(broker: KafkaBroker, directory: Path, lates: list[float]) -> list[str]:
    """Do the same with the whole `penstock run`; return what went wrong."""
    problems = []
    for late in lates:
        name = fresh_name("early")
        given = {"log": f"kafka:{broker.bootstrap}", "data_dir": str(directory / name)}
        settings = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        with python(
            "penstock.plugins.operate.cli", "run", "tests.kafka.early_starter:topology", "--application-id", name,
            "--json", *settings, "--master", "local[1]",
        ) as process:  # fmt: skip
            time.sleep(late)
            broker.start()
            out, err = process.communicate(timeout=_ANSWER_SECONDS)
        broker.kill()
        good = process.returncode == 0 and json.loads(out)["tasks"] == 1
        print(f"penstock run, {late:4.1f} s before the broker: {'good' if good else 'BAD'}", flush=True)
        if not good:
            problems.append(f"{late:.1f} s before: ended with {process.returncode}: {err[-1500:]}")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Start drivers before their broker, and ask things of a broker that was killed."""
    parser = argparse.ArgumentParser("python -m tests.kafka.late_broker", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="starts, spread over 1 to --most-late seconds before")
    parser.add_argument("--most-late", type=float, default=30.0, help="seconds that the broker is late at most")
    parser.add_argument("--again", type=int, default=2, help="how often the broker is killed, and late again")
    parser.add_argument("--whole", type=int, default=2, help="starts of the whole `penstock run`, with Spark")
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside it")
    given = parser.parse_args(arguments)
    problems: list[str] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-late-")))
        broker = stack.enter_context(KafkaBroker(port=free_ports(1)[0]))
        for topic in (ORDERS, TOTALS):
            make_topic(broker.bootstrap, topic)
        broker.kill()
        for _ in range(given.busy):
            stack.enter_context(Child("-c", "while True: pass"))
        starts = start_before(broker, stack, directory, spread(given.rounds, given.most_late))
        prepared = sum(not start.problem for start in starts)
        for number in range(given.again):
            broker.kill()
            for start in starts:
                start.ask(str(number))
            time.sleep(given.most_late / 2)
            broker.start()
            for start in starts:
                start.says("asked", number + 1)
        for start in starts:
            start.ends()
            problems += [f"{start.late:.1f} s before: {start.problem}"] if start.problem else []
        good = len(starts) - len(problems)
        broker.kill()
        problems += run_before(broker, directory, spread(given.whole, given.most_late))
    for problem in problems:
        print(f"WRONG: {problem}")
    print(
        f"starts {len(starts)} prepared {prepared}, and through {given.again} times without the broker {good}; "
        f"penstock run {given.whole}; wrong {len(problems)}"
    )
    return 1 if problems else 0


def spread(count: int, most: float) -> list[float]:
    """Return so many times from 1 to `most` seconds."""
    return [1 + (most - 1) * number / max(1, count - 1) for number in range(count)]


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def _take(stream: IO[str], lines: list[str]) -> None:
    while line := stream.readline():
        lines.append(line.rstrip("\n"))


if __name__ == "__main__":
    sys.exit(main())
