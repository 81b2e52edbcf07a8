"""A real PostgreSQL server in a temporary directory, on a Unix socket: started, killed, frozen and started again."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psutil
import psycopg

from ..waiting import wait_until


def programs() -> Path | None:
    """Return the directory of `initdb` and `postgres`; None where no server is installed."""
    found = [*sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    if (initdb := shutil.which("initdb")) is not None:
        found.insert(0, str(Path(initdb).resolve().parent))
    return next((Path(each) for each in found if (Path(each) / "postgres").exists()), None)


def _user() -> str | None:
    """Return the user that runs the server, which root may not."""
    if os.geteuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class PostgresServer:
    """A server of its own; `dsn` reaches it."""

    def __init__(self) -> None:
        found = programs()
        assert found is not None
        self._programs, self._user = found, _user()
        # The path of a socket has at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
        self._data = self.directory / "data"
        if self._user is not None:
            os.chown(self.directory, pwd.getpwnam(self._user).pw_uid, -1)
        options = ["--auth=trust", "--username=penstock", "--no-sync", "--encoding=UTF8", "--locale=C"]
        subprocess.run(
            [self._programs / "initdb", "-D", self._data, *options], check=True, capture_output=True, user=self._user,
            cwd=self.directory,
        )  # fmt: skip
        self.dsn = f"host={self.directory} dbname=postgres user=penstock"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        # Without fsync a killed process loses nothing, only a machine would.
        options = {"fsync": "off", "listen_addresses": "", "unix_socket_directories": str(self.directory)}
        given = [f"--{name}={each}" for name, each in options.items()]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, *given],
                stdout=log, stderr=log, user=self._user, cwd=self.directory, start_new_session=True,
            )  # fmt: skip
        wait_until(self.is_ready, "the server answers")

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True

    def query(self, statement: str, *arguments: Any) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            found = connection.execute(statement, arguments or None)
            return found.fetchall() if found.description else []

    def _processes(self) -> list[psutil.Process]:
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        return [main, *main.children(recursive=True)]

    def _signal(self, number: int) -> None:
        for each in self._processes():
            try:
                each.send_signal(number)
            except psutil.NoSuchProcess:
                pass

    def kill(self) -> None:
        """End it by SIGKILL, with every connection."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def stop(self) -> None:
        """End it as an operator does, with every connection."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.wake()
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
