"""Runs a function in another process, where strings have other hashes, and time zone and decimal context differ."""

from __future__ import annotations

import decimal
import os
import pickle
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from .child import answer, children_for

_ZONES = ("<+14>-14", "<-0330>3:30")
"""14 hours before UTC, and 3 1/2 behind it: what asks for the local hour or day finds another one."""


def run_elsewhere(act: Callable[[Any], Any], cargo: Any, seed: str, what: str) -> Any:
    """Return `act(cargo)` of another process; `what` names in messages what travels.

    Its hashes begin with `seed`, a number, which also chooses its time zone, decimal context and random numbers.
    """
    import cloudpickle

    try:
        sent = cloudpickle.dumps((act, cargo))
    except Exception as error:
        raise AssertionError(f"{what} travels to other processes, and cannot be pickled: {error!r}") from error
    children = children_for("cloudpickle", "penstock", __name__, hash_seed=seed)
    with children.started(_act, sent, seed) as connection:
        try:
            return answer(connection)
        except (AssertionError, EOFError) as error:
            raise AssertionError(f"{what} failed in another process: {error or 'it ended'}") from error


def _act(connection: Connection, sent: bytes, seed: str) -> None:
    _be_elsewhere(int(seed))
    act, cargo = pickle.loads(sent)
    connection.send(act(cargo))


def _be_elsewhere(seed: int) -> None:
    os.environ["TZ"] = _ZONES[seed % len(_ZONES)]
    time.tzset()
    decimal.setcontext(decimal.Context(prec=3 + seed % 2, rounding=decimal.ROUND_UP))
    random.seed(seed)
