"""SecondProcess: another process, with another hash seed, that goes on with a program where a driver has stopped."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

from penstock import Application
from penstock.plugins.runtime.shipping import pack

from ..driver import TopologyTestDriver
from .child import children_for
from .program_runs import Step, do


class SecondProcess:
    """Sets and hashes of text have another order there, and nothing of this process is there but what is committed."""

    def __init__(self) -> None:
        seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
        self._stack = ExitStack()
        self._connection = self._stack.enter_context(children_for(__name__, hash_seed=seed).started(_serve))

    def __enter__(self) -> SecondProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def do(self, application: Application, steps: Sequence[Step], options: dict[str, Any]) -> None:
        """Let a driver with `options` do steps there. Fails with the traceback of an error."""
        self._connection.send((pack(application), list(steps), options))
        failed = self._connection.recv()
        assert not failed, f"in a second process the program failed:\n{failed}"


def _serve(connection: Connection) -> None:
    """Do steps until the connection ends."""
    while True:
        try:
            packed, steps, options = connection.recv()
        except EOFError:
            return
        failed = ""
        try:
            with TopologyTestDriver(pickle.loads(packed), **options) as driver:
                do(driver, steps)
        except BaseException:
            failed = traceback.format_exc()
        connection.send(failed)
