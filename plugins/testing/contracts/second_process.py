"""SecondProcess: another process, with another hash seed, that goes on with a program where a driver has stopped."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from penstock import Application
from penstock.plugins.runtime.shipping import pack

from ..driver import TopologyTestDriver
from .program_runs import Step, do

_SERVE = f"from {__name__} import serve; serve()"


class SecondProcess:
    """Sets and hashes of text have another order there, and nothing of this process is there but what is committed."""

    def __init__(self) -> None:
        seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )

    def __enter__(self) -> SecondProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def do(self, application: Application, steps: Sequence[Step], options: dict[str, Any]) -> None:
        """Let a driver with `options` do steps there. Fails with the traceback of an error."""
        assert self._process.stdin is not None and self._process.stdout is not None, "the process has no pipes"
        pickle.dump((pack(application), list(steps), options), self._process.stdin)
        self._process.stdin.flush()
        failed = pickle.load(self._process.stdout)
        assert not failed, f"in a second process the program failed:\n{failed}"


def serve() -> None:
    """Do steps until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a program prints is no answer
    while True:
        try:
            packed, steps, options = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        failed = ""
        try:
            with TopologyTestDriver(pickle.loads(packed), **options) as driver:
                do(driver, steps)
        except BaseException:
            failed = traceback.format_exc()
        pickle.dump(failed, answers)
        answers.flush()
