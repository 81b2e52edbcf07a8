"""Spark's JVM: how it ended, and how a run ends first where somebody else ends the JVM (spark-submit)."""

from __future__ import annotations

import atexit
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXIT_SECONDS = 10.0
_STOP_SECONDS = 25.0
"""How long the JVM's end waits for the run's: Hadoop gives a hook 30 seconds."""
_SCRIPT_SECONDS = 3.0
"""How long it waits then for the end of the script, which may stop its session."""
_BEFORE_SPARK = 100
"""Hadoop's hooks run one after the other, the highest priority first; Spark's has 40."""

_log = logging.getLogger("penstock.spark")


def says_that_the_jvm_is_gone(error: Exception) -> bool:
    """Return whether a call into the JVM failed because there is none any more."""
    return isinstance(error, (ConnectionError, EOFError)) or type(error).__module__.startswith("py4j.")


def how_the_jvm_ended(session: SparkSession) -> str:
    """Return with which exit status or signal Spark's JVM ended, and where to look for the reason."""
    process: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
    if process is None:
        return "Spark's JVM has ended (the output of spark-submit may say why)"
    try:
        code = process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"Spark's JVM (process {process.pid}) does not answer any more"
    if code >= 0:
        how = f"exit code {code}"
    else:
        how = f"signal {-code}, {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; the kernel kills it when memory is used up: see its log (dmesg)" if code == -signal.SIGKILL else ""
    return (
        f"Spark's JVM (process {process.pid}) has ended by {how}{hint}. What it said is above on standard error; a "
        f"crash of Java leaves hs_err_pid{process.pid}.log in the working directory"
    )


@contextmanager
def ending_before_the_jvm(session: SparkSession, ask_to_stop: Callable[[str], None]) -> Iterator[None]:
    """Let a signal to a JVM that is not this process's child stop the run first; `ask_to_stop` gets its name.

    spark-submit gets the signal, and its JVM would be gone in the middle of a batch.
    """
    if getattr(session.sparkContext._gateway, "proc", None) is not None:
        yield
        return
    hook = _Hook(ask_to_stop)
    try:
        hook.add(session)
    except Exception as error:
        _log.debug("the JVM will not wait for the run: %s", error)
        yield
        return
    try:
        yield
    finally:
        hook.end()


class _Hook:
    """A Runnable that the JVM calls when it is about to end."""

    def __init__(self, ask_to_stop: Callable[[str], None]) -> None:
        self._ask_to_stop = ask_to_stop
        self._is_called = False
        self._run_has_ended = threading.Event()
        self._script_has_ended = threading.Event()
        self._manager: Any = None

    def add(self, session: SparkSession) -> None:
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(session.sparkContext._gateway)  # type: ignore[no-untyped-call]
        jvm: Any = session._jvm
        self._manager = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        self._manager.addShutdownHook(self, _BEFORE_SPARK)

    def end(self) -> None:
        """Note that the run has ended; the JVM need not ask any more."""
        self._run_has_ended.set()
        if not self._is_called:
            with suppress(Exception):
                self._manager.removeShutdownHook(self)
            return
        atexit.register(self._let_go)

    def _let_go(self) -> None:
        self._script_has_ended.set()
        # The answer to the JVM is sent by another thread, which ends with this process.
        time.sleep(0.2)

    # What the JVM calls.

    def run(self) -> None:
        self._is_called = True
        self._ask_to_stop(signal.SIGTERM.name)
        if self._run_has_ended.wait(_STOP_SECONDS):
            self._script_has_ended.wait(_SCRIPT_SECONDS)

    def hashCode(self) -> int:
        return id(self) % 2**31

    def equals(self, other: object) -> bool:
        return other is self

    def toString(self) -> str:
        return "penstock's run"

    class Java:
        implements: ClassVar = ["java.lang.Runnable"]
