"""The protocol of proxies and task hosts over their sockets: a greeting line, then pickled frames."""

from __future__ import annotations

import pickle
import socket
import struct
import traceback
from dataclasses import dataclass
from typing import Any

from penstock import PenstockError
from penstock.plugins.engine.task.shipping import is_sent

PROTOCOL = "penstock-host/1"
_LENGTH = struct.Struct("!Q")
_LONGEST_LINE = 1024
END = "end"
"""The second word of a greeting that asks a host to end; after it comes the reason."""
_CHUNK = 1 << 20


class ClosedError(Exception):
    """The other end has closed the connection, or has ended."""


class SilentError(Exception):
    """The other end has sent nothing for too long, not even that it is busy."""


@dataclass(frozen=True)
class Busy:
    """The host's sign of life while it works on a request."""


@dataclass(frozen=True)
class Answer:
    """The host's answer: a value, or the error that its engine raised."""

    value: Any = None
    error: BaseException | None = None

    @classmethod
    def of_error(cls, error: BaseException) -> Answer:
        """Return an error as an answer; its traceback goes along as a note."""
        note = f"In the task host:\n{''.join(traceback.format_exception(error))}"
        try:
            if is_sent(type(error)):
                raise TypeError("the proxy may not have its class")
            portable: BaseException = pickle.loads(pickle.dumps(error))
        except Exception:
            portable = PenstockError(f"{type(error).__name__}: {error}")
        portable.add_note(note)
        return cls(error=portable)


def send_line(connection: socket.socket, *words: str) -> None:
    """Send the words of a greeting, as plain text: both ends must be able to read it whatever their release."""
    try:
        connection.sendall((" ".join(words) + "\n").encode())
    except OSError as error:
        raise ClosedError(str(error)) from error


def receive_line(connection: socket.socket) -> list[str]:
    """Return the words of a greeting."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
        line += bytes(_exactly(connection, 1))
    return line.decode(errors="replace").split()


def send(connection: socket.socket, message: Any) -> None:
    """Send one message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        connection.sendall(_LENGTH.pack(len(data)))
        connection.sendall(data)
    except TimeoutError as error:
        raise SilentError("it does not read what it is sent") from error
    except OSError as error:
        raise ClosedError(str(error)) from error


def receive(connection: socket.socket) -> Any:
    """Return one message. Call it only after `check_peer`: unpickling runs code of the sender."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        try:
            received = connection.recv_into(view[done:], min(count - done, _CHUNK))
        except TimeoutError as error:
            raise SilentError("it sends nothing") from error
        except OSError as error:
            raise ClosedError(str(error)) from error
        if not received:
            raise ClosedError("it has closed the connection")
        done += received
    return data
