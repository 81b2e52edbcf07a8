"""The imports of modules of hooks, each in a process that has imported nothing else."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

HEAVY = ("pyspark", "pandas", "pyarrow")
"""Modules that a module of hooks must not import: each takes up to a second, and some start threads, which no fork survives."""


@dataclass(frozen=True)
class Imported:
    """The effect of an import: the modules of `HEAVY` that it imported, and the text that it printed."""

    heavy: tuple[str, ...] = ()
    printed: str = ""


def imported(modules: Sequence[str]) -> list[Imported]:
    """Import each of `modules` elsewhere; return what that did. One that cannot be imported did nothing."""
    if not modules:
        return []
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps([sys.path, list(modules)]),
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout) if done.returncode == 0 else [None] * len(modules)
    return [Imported(tuple(each[0]), each[1]) if each else Imported() for each in found]


def main() -> None:
    """Answer on stdout; the modules are read from stdin."""
    path, modules = json.load(sys.stdin)
    sys.path[:] = path
    importlib.import_module("penstock.hooks")  # once: each module of hooks imports it
    print(json.dumps([_in_a_child(module) for module in modules]))


def _in_a_child(module: str) -> object:
    """Return [heavy modules, printed text] of one import; None if it failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()) as printed:
            importlib.import_module(module)
            heavy = [name for name in HEAVY if name in sys.modules]
            os.write(writing, json.dumps([heavy, printed.getvalue()[:1000]]).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


if __name__ == "__main__":
    main()
