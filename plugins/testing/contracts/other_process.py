"""Runs a function in another process, whose strings and objects have other hashes than here."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from .child import answer, children_for


def run_elsewhere(act: Callable[[Any], Any], cargo: Any, seed: str, what: str) -> Any:
    """Return `act(cargo)` of a process whose hashes begin with `seed`; `what` names in messages what travels."""
    import cloudpickle

    try:
        sent = cloudpickle.dumps((act, cargo))
    except Exception as error:
        raise AssertionError(f"{what} travels to other processes, and cannot be pickled: {error!r}") from error
    children = children_for("cloudpickle", "penstock", __name__, hash_seed=seed)
    with children.started(_act, sent) as connection:
        try:
            return answer(connection)
        except (AssertionError, EOFError) as error:
            raise AssertionError(f"{what} failed in another process: {error or 'it ended'}") from error


def _act(connection: Connection, sent: bytes) -> None:
    act, cargo = pickle.loads(sent)
    connection.send(act(cargo))
