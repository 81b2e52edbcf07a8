"""The process of a task host: takes its place, listens, and runs its engine until its life ends."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import pickle
import secrets
import signal
import socket
import sys
import threading
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from penstock import RuntimeUnavailableError
from penstock.plugins.engine.task.process_resources import tune_garbage_collector
from penstock.plugins.engine.task.shipping import unpack

from .client import END, PROTOCOL, Busy, ClosedError, HostAnswer, SilentError, receive, receive_line, send, send_line
from .place import Life, Place, ProcessId, check_peer
from .reports import Meter
from .slot_engine import Cargo, HostEngine, HostInfo

_BUSY_SECONDS = 5.0
_SIGNAL_SECONDS = 1.0
"""Seconds after which a waiting host looks for signals that did not wake it."""
_CLOSING_SECONDS = 10.0
"""Seconds for the engine to close when the host ends; uncommitted work is then lost, as after a crash."""

_log = logging.getLogger("penstock.hosts")


class HostProcess:
    """One task host. The main thread runs the engine; threads serve the connections and watch the host's life."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._slot: int = start["slot"]
        self._name: str = start["name"]
        self._scope: str = start["scope"]
        self._digest: str = start["digest"]
        self._place = Place(start["key"], start["top"])
        self._reason: str = start["reason"]
        self._watched = [ProcessId(**each) for each in start["watched"]]
        self._lease_seconds: float = start["lease_seconds"]
        self._token = secrets.token_hex(8)
        self._calls: SimpleQueue[tuple[Future[HostAnswer], Any] | None] = SimpleQueue()
        self._set_up, self._cargo = b"", b""
        self._greeting = threading.Lock()
        self._engine: HostEngine | None = None
        self._meter = Meter()
        self._ending = threading.Event()
        self._lock = -1

    def run(self) -> None:
        """Serve until the host's life ends."""
        try:
            lock = self._place.take()
            if lock is None:
                _say("taken")
                return
            listening = self._place.listen()
        except RuntimeUnavailableError as error:
            _say(f"failed {error}")
            return
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self.end("it was asked to end by a signal"))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._lock = lock
        with contextlib.suppress(RuntimeError, ValueError, OSError):
            faulthandler.enable(lock, all_threads=False)  # see Place.how_it_ended
        self._life = Life(self._watched, self.end, self._lease_seconds, lambda: self._place.is_kept(lock))
        threading.Thread(target=self._accept, args=(listening,), name="penstock-accept", daemon=True).start()
        _say("ready")
        try:
            self._work()
        finally:
            self._place.leave(lock)

    def end(self, reason: str) -> None:
        """End after the present request, or without its end if that takes long; called from any thread."""
        if self._ending.is_set():
            return
        self._ending.set()
        _log.info("%s (process %d) ends: %s", self._name, os.getpid(), reason)
        timer = threading.Timer(_CLOSING_SECONDS, self._end_now)
        timer.daemon = True
        timer.start()
        self._calls.put(None)

    def _end_now(self) -> None:
        self._place.leave(self._lock)
        os._exit(1)

    # ------------------------------------------------------------------ the main thread

    def _work(self) -> None:
        while (call := self._next_call()) is not None:
            future, request = call
            if not future.set_running_or_notify_cancel():
                continue  # Spark has ended the proxy meanwhile
            if self._ending.is_set():
                future.set_exception(ClosedError("the host is ending"))
                continue
            try:
                answer = HostAnswer(self._running_engine().handle(request))
            except BaseException as error:
                answer = HostAnswer.of_error(error)
            future.set_result(answer)
        if self._engine is not None:
            try:
                self._engine.close()
            except Exception as error:
                _log.warning("closing the tasks raised %s: %s", type(error).__name__, error)

    def _next_call(self) -> tuple[Future[HostAnswer], Any] | None:
        """Return the next request with its future; None to end."""
        while True:
            # Not without a time-out: a signal that comes just before the wait does not interrupt it, and its handler
            # would run with the next request.
            with contextlib.suppress(Empty):
                return self._calls.get(timeout=_SIGNAL_SECONDS)

    def _running_engine(self) -> HostEngine:
        if self._engine is None:
            pickle.loads(self._set_up)()
            cargo: Cargo = unpack(self._cargo)
            self._engine = cargo.engine(
                HostInfo(self._token, self._slot, self._scope, self._reason, self._meter, watched=self._watched)
            )
            tune_garbage_collector()
        return self._engine

    # ------------------------------------------------------------------ connections

    def _accept(self, listening: socket.socket) -> None:
        while not self._ending.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                self._ending.wait(0.1)  # too many open files: some may be closed soon
                continue
            threading.Thread(target=self._serve, args=(connection,), name="penstock-proxy", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                check_peer(connection)
                if self._greet(connection):
                    while True:
                        self._answer(connection, receive(connection))
            except (ClosedError, SilentError):
                pass  # the proxy has ended, or Spark has given it up
            except RuntimeUnavailableError as error:
                _log.warning("%s", error)

    def _greet(self, connection: socket.socket) -> bool:
        """Exchange greetings; return whether the proxy has the same code and settings."""
        protocol, digest, *reason = [*receive_line(connection), "", ""]
        if (protocol, digest) == (PROTOCOL, END):
            self.end(" ".join(reason).strip())
            # The end of the connection tells the other side that the process is gone.
            threading.Event().wait()
        if protocol != PROTOCOL or digest != self._digest or self._ending.is_set():
            send_line(connection, PROTOCOL, "ending")
            self.end("a proxy has come with other code or settings")
            return False
        with self._greeting:
            send_line(connection, PROTOCOL, "ready" if self._cargo else "cargo")
            if not self._cargo:
                self._set_up, self._cargo = receive(connection)
        return True

    def _answer(self, connection: socket.socket, request: Any) -> None:
        self._life.begin_request()
        try:
            future: Future[HostAnswer] = Future()
            self._calls.put((future, request))
            while True:
                try:
                    answer = future.result(_BUSY_SECONDS)
                    break
                except TimeoutError:
                    if future.done():
                        raise
                    send(connection, Busy())
        finally:
            future.cancel()
            self._life.end_request()
        send(connection, answer)


def _say(line: str) -> None:
    """Tell the process that started this one, and let it go: standard output is what standard error is from now on."""
    with contextlib.suppress(OSError):
        os.write(1, (line.replace("\n", " ") + "\n").encode())
    os.dup2(2, 1)


def main(start: dict[str, Any]) -> None:
    """Run a host; `start` is the message of the process that started it."""
    logging.captureWarnings(True)
    code = 1
    try:
        HostProcess(start).run()
        code = 0
    except BaseException as error:
        _log.error("the task host ended with %s: %s", type(error).__name__, error, exc_info=error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Clients that were given up have threads that may never end: do not wait for them.
        os._exit(code)
