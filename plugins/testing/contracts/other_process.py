"""Runs a function in a fresh Python, whose strings and objects have other hashes than here."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_CODE = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import answer; answer()"


def run_elsewhere(act: Callable[[Any], Any], cargo: Any, seed: str, what: str) -> Any:
    """Return `act(cargo)` of a process whose hashes begin with `seed`; `what` names in messages what travels."""
    import cloudpickle

    try:
        sent = cloudpickle.dumps((act, cargo))
    except Exception as error:
        raise AssertionError(f"{what} travels to other processes, and cannot be pickled: {error!r}") from error
    command = [sys.executable, "-c", _CODE, json.dumps(sys.path)]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    process = subprocess.run(command, input=sent, capture_output=True, env=environment, timeout=120)
    assert process.returncode == 0, f"{what} failed in another process: {process.stderr.decode()}"
    return pickle.loads(process.stdout)


def answer() -> None:
    """Answer what the input of this process has; in the other process."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    act, cargo = pickle.loads(sys.stdin.buffer.read())
    pickle.dump(act(cargo), answers)
    answers.close()
