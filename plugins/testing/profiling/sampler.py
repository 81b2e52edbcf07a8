"""Sampler: looks at the stack of this thread a thousand times a second; names of functions and nodes; flame graphs."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import sysconfig
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any

import penstock
from penstock import ConfigError, Node, SinkNode, SourceNode
from penstock.operator import Operator
from penstock.program.wrapping import innermost

_INTERVAL = 0.001
_DROPPED = ("/core/task/", "/penstock/task/", "/plugins/engine/", "/plugins/testing/profiling/")
"""Frames of the engine, whose time counts for their callers."""
Stack = tuple[str, ...]
"""Labels of frames, the outermost first."""


def check_flame(path: Path) -> None:
    """Raise ConfigError for a file whose name does not say what is to be written, or whose directory there is not."""
    if path.suffix not in (".json", ".folded", ".txt"):
        raise ConfigError(
            f"--flame {path}: expected a name that ends with .json (for https://speedscope.app), or with .folded or "
            ".txt (collapsed stacks, for flamegraph.pl or inferno)"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"--flame {path}: there is no directory {str(path.parent)!r}")


def why_not() -> str:
    """Return why no samples can be taken here; "" if they can."""
    if not hasattr(signal, "setitimer"):
        return "this operating system has no interval timers (signal.setitimer)"
    if threading.current_thread() is not threading.main_thread():
        return "it is not the main thread of the process, and only that gets signals"
    if signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL or any(signal.getitimer(signal.ITIMER_REAL)):
        return "something else in this process uses SIGALRM"
    return ""


class Sampler:
    """Takes samples of the thread that made it, in the block of `running`.

    A sample counts for the time since the one before: the signal waits while a function in C works, and then finds the
    function that called it. It costs a hundredth of the time, where Python's own profilers slow the calls of small
    functions to a third, and so show another program.
    """

    def __init__(self, labels: Mapping[int, str]) -> None:
        self._labels = labels
        self._codes: dict[int, CodeType] = {}
        self._seconds: dict[tuple[int, ...], float] = defaultdict(float)
        self._last = 0.0
        self.samples = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Take samples, where that can be done (`why_not`)."""
        before = signal.signal(signal.SIGALRM, self._look)
        signal.siginterrupt(signal.SIGALRM, False)
        self._last = perf_counter()
        signal.setitimer(signal.ITIMER_REAL, _INTERVAL, _INTERVAL)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _look(self, number: int, frame: FrameType | None) -> None:
        now, codes, stack = perf_counter(), self._codes, []
        while frame is not None:
            code = frame.f_code
            which = id(code)
            codes[which] = code
            stack.append(which)
            frame = frame.f_back
        self._seconds[tuple(stack)] += now - self._last
        self.samples += 1
        self._last = perf_counter()

    def stacks(self) -> dict[Stack, float]:
        """Return the seconds of each stack, with the program's own frames and the labels of the hooks."""
        labels: dict[int, str | None] = {
            which: self._labels.get(which) or _label(code) for which, code in self._codes.items()
        }
        found: dict[Stack, float] = defaultdict(float)
        for stack, seconds in self._seconds.items():
            inside = self._inside(stack)
            shown = tuple(each for which in reversed(inside) if (each := labels[which]) is not None)
            if inside:
                found[shown or ("engine",)] += seconds
        return dict(found)

    def functions(self) -> list[Function]:
        """Return the user's functions with their seconds, those with the most time of their own first.

        What a function calls that is not the user's, such as a library's function, is its own time.
        """
        own: dict[int, float] = defaultdict(float)
        total: dict[int, float] = defaultdict(float)
        users = {which for which, code in self._codes.items() if which not in self._labels and is_users(code)}
        for stack, seconds in self._seconds.items():
            inside = self._inside(stack)
            # A node or a store below the user's function is not its own time.
            for which in inside:
                if which in users:
                    own[which] += seconds
                    break
                if which in self._labels:
                    break
            for which in set(inside) & users:
                total[which] += seconds
        functions = [
            Function(*describe_code(self._codes[which]), own[which], seconds) for which, seconds in total.items()
        ]
        return sorted(functions, key=lambda each: (-each.own_seconds, -each.total_seconds, each.name))

    def _inside(self, stack: tuple[int, ...]) -> tuple[int, ...]:
        """Return the frames that a batch called, the innermost first; none of a stack outside of batches."""
        for index, which in enumerate(stack):
            code = self._codes[which]
            if code.co_name == "run_batch" and code.co_filename.endswith("task_worker.py"):
                return stack[:index]
        return ()


_PHASES = {
    ("input_queue.py", "_decode_timed"): "decode",
    ("positions.py", "fetch"): "read",
    ("commit.py", "make"): "commit",
    ("commit.py", "send"): "commit",
    ("task_state.py", "flush"): "flush stores",
    ("task_state.py", "append_delta"): "write the changelog",
    ("task_state.py", "apply"): "write stores",
}


def _label(code: CodeType) -> str | None:
    """Return a frame's label; None for a frame that is left out."""
    where = code.co_filename.replace("\\", "/")
    if phase := _PHASES.get((where.rpartition("/")[2], code.co_name)):
        return phase
    if not is_users(code) and any(each in where for each in _DROPPED):
        return None
    name, file, line = describe_code(code)
    return f"{name} ({file.rpartition('/')[2]}:{line})" if line else name


def write_flame(stacks: Mapping[Stack, float], path: Path, name: str) -> None:
    """Write a flame graph to a file, in the format that its name says (`check_flame`)."""
    if path.suffix != ".json":
        lines = [
            f"{';'.join(each.replace(';', ',') for each in stack)} {max(1, round(seconds * 1e6))}\n"
            for stack, seconds in sorted(stacks.items())
        ]
        path.write_text("".join(lines), encoding="utf-8")
        return
    path.write_text(json.dumps(_speedscope(stacks, name)), encoding="utf-8")


def _speedscope(stacks: Mapping[Stack, float], name: str) -> dict[str, object]:
    """Return a document of https://www.speedscope.app/file-format-schema.json."""
    ordered = sorted(stacks.items())
    frames = {label: number for number, label in enumerate(dict.fromkeys(each for stack in stacks for each in stack))}
    samples: Sequence[Sequence[int]] = [[frames[each] for each in stack] for stack, _ in ordered]
    weights = [seconds for _, seconds in ordered]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"penstock profile, Python {sys.version.partition(' ')[0]}",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": name,
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        ],
    }


_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib", "stdlib", "platstdlib")})
_OURS = tuple({str(Path(each).resolve()) + os.sep for each in penstock.__path__})
_ROOT = str(Path(penstock.__path__[0]).resolve().parent) + os.sep
_LAYERS = ("core", "stores", "plugins", "contrib", "doors")


@dataclass(frozen=True)
class Function:
    """A function of the user's. `own_seconds`: with what it calls that is not the program's; `total_seconds`: all."""

    name: str
    file: str
    line: int
    own_seconds: float
    total_seconds: float


def is_users(code: CodeType) -> bool:
    """Return whether code is neither penstock's nor a library's."""
    file = code.co_filename
    if file.startswith("<") and file != "<stdin>" and not file.startswith("<ipython"):
        return False
    return not file.startswith((*_LIBRARIES, sys.prefix + os.sep + "lib")) and not _is_ours(file)


def _is_ours(file: str) -> bool:
    if file.startswith(_OURS) or file == "penstock profile":
        return True
    # A checkout, whose folders are the layers.
    return file.startswith(_ROOT) and file[len(_ROOT) :].partition(os.sep)[0] in _LAYERS


def describe_code(code: CodeType) -> tuple[str, str, int]:
    """Return the name, the file and the first line of code, the name without what it is nested in."""
    file = code.co_filename
    name = code.co_qualname.replace(".<locals>", "")
    return name, file if file.startswith("<") else os.path.relpath(file), code.co_firstlineno


def describe_node(node: Node, processor: object) -> tuple[str, tuple[str, ...]]:
    """Return the kind of a node, and the user's functions in it."""
    if isinstance(node, SourceNode):
        return f"source {', '.join(node.topics) or (node.pattern.pattern if node.pattern else '')}", ()
    if isinstance(node, SinkNode):
        return f"sink {node.topic if isinstance(node.topic, str) else 'of a chosen topic'}", ()
    if processor is None:
        return "processor", ()
    made = innermost(processor)
    if isinstance(made, Operator) and type(made).__module__.startswith("penstock."):
        folds = [type(each).__name__ for each in vars(made).values() if type(each).__name__ == "Counting"]
        name = "count" if folds else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(made).__name__).lower()
        given = vars(made).get("function")
        builtin = [given.__name__] if isinstance(given, (type, BuiltinFunctionType)) else []
        return name, tuple(dict.fromkeys([*_functions(made, 2), *builtin]))
    return type(made).__name__, ()


def _functions(value: Any, depth: int) -> Iterator[str]:
    """Yield the user's functions among an operator's attributes."""
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        if is_users(code):
            name, file, line = describe_code(code)
            yield f"{name.rpartition('.')[2]} ({file}:{line})"
        elif depth:
            for cell in value.__closure__ or ():
                try:
                    yield from _functions(cell.cell_contents, depth - 1)
                except ValueError:  # an empty cell
                    continue
    elif depth and type(value).__module__.startswith("penstock.") and hasattr(value, "__dict__"):
        for each in list(vars(value).values()):
            yield from _functions(each, depth - 1)
