"""The library psycopg: connections that notice a server that is away, and its errors by what is to be done."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock import SinkError, SinkRefusedError, SinkUnavailableError
from penstock.support.packages import needed

SINK = "sink 'contrib.postgres'"
_AWAY = ("08", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE: connection, rollback by the server (deadlock), resources, locks, operator, system."""
_READ_ONLY = "25006"  # a standby: the primary is elsewhere
_REFUSED = ("21", "22", "23", "44", "54", "P0")
"""Classes of SQLSTATE: what is in a row breaks a type, a constraint, a limit, or a trigger's rule."""
_REFUSED_STATES = ("42804", "42846", "428C9")  # types that do not fit, and a generated column
_NOT_AWAY = ("authentication failed", "does not exist", "no pg_hba.conf entry", "permission denied")


def load() -> Any:
    """Return psycopg, which the extra `postgres` installs."""
    with needed(SINK, "postgres"):
        import psycopg
    return psycopg


class Connection:
    """A connection whose socket is closed when the server does not answer in time.

    A server that is frozen keeps its sockets open, and a query would wait for ever.
    """

    def __init__(self, raw: Any, seconds: float) -> None:
        self.raw = raw
        self._seconds = seconds

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Give the block so many seconds; raise errors of psycopg as those of a sink."""
        timer = threading.Timer(self._seconds, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (SinkError, AssertionError):
            raise
        except Exception as error:
            raise explained(error) from error
        finally:
            timer.cancel()

    def _cut(self) -> None:
        with suppress(Exception):  # it was closed meanwhile
            descriptor = os.dup(self.raw.pgconn.socket)
            with socket.socket(fileno=descriptor) as own:
                own.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; idempotent."""
        with suppress(Exception):
            self.raw.close()


def connect(dsn: str, seconds: float, name: str) -> Connection:
    """Connect. Raises SinkUnavailableError, and SinkError where waiting does not help."""
    psycopg, ms = load(), int(seconds * 1000)
    # The server ends what a client that is gone has begun: its transaction has locked the position.
    options = f"-c statement_timeout={ms} -c lock_timeout={ms} -c idle_in_transaction_session_timeout={ms}"
    try:
        given = psycopg.conninfo.conninfo_to_dict(dsn)
        defaults = {
            "connect_timeout": max(2, int(seconds)),
            "application_name": name[:63],
            "tcp_user_timeout": ms,
            "target_session_attrs": "read-write",
        }
        parameters = {**defaults, **given, "options": f"{given.get('options', '')} {options}".strip()}
        raw = psycopg.connect(**parameters, autocommit=True, client_encoding="UTF8")
    except psycopg.Error as error:
        raise explained(error) from error
    return Connection(raw, seconds)


def explained(error: Exception) -> Exception:
    """Return the SinkError for an error of psycopg; another error stays as it is."""
    psycopg = load()
    text = " ".join(str(error).split())
    if isinstance(error, UnicodeError):
        return SinkRefusedError(text)  # a text with half of a surrogate pair
    if not isinstance(error, psycopg.Error):
        return error
    state = error.sqlstate or ""
    if state[:2] in _AWAY or state == _READ_ONLY:
        return SinkUnavailableError(text)
    if state[:2] in _REFUSED or state in _REFUSED_STATES:
        return SinkRefusedError(text)
    if not state and isinstance(error, (psycopg.DataError, psycopg.ProgrammingError)):
        return SinkRefusedError(text)  # psycopg cannot write a value: a NUL in a text, a type that it does not know
    if not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        if any(each in text for each in _NOT_AWAY):
            return SinkError(f"{text}; correct the dsn, or the database")
        return SinkUnavailableError(text)
    return SinkError(f"{text} (SQLSTATE {state or 'unknown'})")
