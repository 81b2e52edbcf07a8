"""The checks of `penstock plugins --check`: components of the wrong type, and plugins under a wrong entry point."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from typing import Any

import click

from penstock import (
    DeltaChangelog,
    Log,
    LogChangelog,
    MetricsReporter,
    PenstockError,
    PluginError,
    Serde,
    Setting,
    Sink,
    StagedSink,
    StateStore,
    StoreBackend,
    Topology,
)
from penstock.hooks import GROUP, KINDS, MARK, Component
from penstock.hooks.registry import plugin_code
from penstock.hooks.rules import normal_name
from penstock.plugins.engine.run.companion import not_a_companion
from penstock.plugins.engine.run.engine import Engine
from penstock.program.checks import OF_NODES, check_builder, check_class, try_supplier
from penstock.program.provided import check_provider, provided_stores
from penstock.settings.names import Vocabulary
from penstock.support.packages import DISTRIBUTION, IMPORT_NAME, installed_version, later_version
from penstock.support.private_files import temporary_top

_OF_PYTHON = frozenset({"console_scripts", "gui_scripts"})


def check_component(component: Component) -> None:
    """Check that a component can be loaded and has its kind's interface. Raises PluginError."""
    found = component.load()
    try:
        with plugin_code():
            wrong = _of_another_kind(component.kind, found) or _CHECKS[component.kind](found)
    except PenstockError as error:
        wrong = str(error)
    except Exception as error:
        wrong = f"calling it raised {type(error).__name__}: {error}"
    if wrong:
        raise PluginError(f"{component.title}: {wrong}")


def costly_plugins() -> Iterator[tuple[str, str]]:
    """Yield (plugin, problem) for each module of hooks that does too much when it is imported."""
    points = [(plugin, point.module) for plugin, _, point in _entry_points() if point.group == GROUP]
    for (plugin, module), done in zip(points, imported([module for _, module in points])):
        if done.heavy:
            yield (
                plugin,
                f"its module {module} imports {' and '.join(done.heavy)}, and it is imported whenever any plugin is "
                "looked up: name components as 'package.module:attribute', which is imported when it is first used",
            )
        if done.printed.strip():
            yield (
                plugin,
                f"its module {module} prints when it is imported: {done.printed.strip()!r}; commands have their output",
            )


def misplaced_plugins() -> Iterator[tuple[str, str]]:
    """Yield (plugin, problem) for each entry point in a wrong group that seems meant for penstock.

    These are entry points of a group whose name resembles ours; and in packages that require penstock, those of any
    group that name a module with hooks of penstock.
    """
    for plugin, distribution, point in _entry_points():
        if point.group == GROUP or point.group in _OF_PYTHON:
            continue
        if _resembles(point.group) or (_requires(distribution, DISTRIBUTION) and _has_hooks(point)):
            yield (
                plugin,
                f"its entry point {point.name} = {point.value} is in the group {point.group!r}, which nobody reads: "
                f"write it in the group {GROUP!r} ([project.entry-points.{GROUP}] in pyproject.toml) and install the "
                "package again",
            )


def plugins_for_another_version() -> Iterator[tuple[str, str]]:
    """Yield (plugin, problem) for each package of plugins that requires a later penstock.

    Also for one that requires the other project `penstock`.
    """
    packages = {id(distribution): distribution for _, distribution, point in _entry_points() if point.group == GROUP}
    for distribution in packages.values():
        if _requires(distribution, IMPORT_NAME):
            yield (
                f"{distribution.name} {distribution.version}",
                f"it requires the distribution {IMPORT_NAME!r}, which is another project: require {DISTRIBUTION!r}",
            )
        if (later := later_version(distribution.requires or ())) is not None:
            yield (
                f"{distribution.name} {distribution.version}",
                f"it requires {later}, and {installed_version(DISTRIBUTION)} is installed: install that version of "
                f"{DISTRIBUTION}, or an earlier version of {distribution.name}",
            )


def _entry_points() -> Iterator[tuple[str, Distribution, EntryPoint]]:
    """Yield the entry points of other packages, each after its plugin's name in messages."""
    for distribution in distributions():
        if distribution.name is not None and normal_name(distribution.name) != DISTRIBUTION:
            for point in distribution.entry_points:
                yield f"{distribution.name} {distribution.version} ({point.name})", distribution, point


def _requires(distribution: Distribution, name: str) -> bool:
    named = (re.match(r"[A-Za-z0-9._-]+", each) for each in distribution.requires or ())
    return any(each is not None and normal_name(each[0]) == name for each in named)


def _resembles(group: str) -> bool:
    first = re.split(r"[-_.:]", group.lower())[0]
    return SequenceMatcher(None, first, GROUP).ratio() > 0.8


def _has_hooks(point: EntryPoint) -> bool:
    try:
        module = point.load()
    except Exception:
        return False  # whoever reads that group will say so
    return any(hasattr(getattr(module, hook, None), MARK) for hook in KINDS.values())


# ---------------------------------------------------------------- by kind: what is wrong, or None


_BASES: Mapping[str, tuple[type, ...]] = {
    "serde": (Serde,),
    "store backend": (StoreBackend,),
    "store kind": (StateStore,),
    "log": (Log,),
    "metrics reporter": (MetricsReporter,),
    "sink": (Sink, StagedSink),
}


def _of_another_kind(kind: str, found: Any) -> str | None:
    bases = _BASES.get(kind)
    if bases is None or not isinstance(found, type) or issubclass(found, bases):
        return None
    names = " or ".join(f"penstock.{base.__name__}" for base in bases)
    return f"class {found.__name__} is not derived from {names}"


def _processor(found: Any) -> str | None:
    if isinstance(found, type):
        check_class("its class", found)
    elif _takes(found) is None:
        try_supplier("called without options", found, {})
    taken = [
        parameter.name
        for parameter in _parameters(found)
        if parameter.name in OF_NODES and parameter.default is parameter.empty
    ]
    if taken:
        return f"its parameter {taken[0]!r} is an argument of the node itself, so it cannot be given: rename it"
    check_provider("its class" if isinstance(found, type) else "its attribute", found)
    if hasattr(found, "stores") and _takes(found.stores) is None:
        for store in provided_stores("called without options", found, {}):
            check_builder(store)
    return None


def _parameters(found: Any) -> Iterable[inspect.Parameter]:
    try:
        return inspect.signature(found).parameters.values()
    except ValueError:
        return ()  # Some callables written in C have no signature.


def _serde(found: Any) -> str | None:
    if isinstance(found, type) and inspect.isabstract(found):
        return _abstract(found)
    if _takes(found) is not None:
        return None if _takes(found, "str") is None else f"{_takes(found)}; a serde is made without arguments"
    made = found()
    if not isinstance(made, Serde):
        return f"it made {made!r}, expected a penstock.Serde"
    try:
        pickle.dumps(made)
    except Exception as error:
        return (
            f"it cannot be pickled, and it is sent to Spark's workers: {type(error).__name__}: {error}. Write "
            "__reduce__, or make what cannot be pickled when it is first used"
        )
    return None


def _store_backend(found: Any) -> str | None:
    wrong = _abstract(found) or _takes(found, "directory", ["store"], read_only=True)
    if wrong or isinstance(found, type):
        return wrong
    with tempfile.TemporaryDirectory(prefix="penstock-check-", dir=temporary_top()) as directory:
        opened = found(Path(directory), ["store"])
        if not isinstance(opened, StoreBackend):
            return f"it opened {opened!r}, expected a penstock.StoreBackend"
        opened.destroy()
    return None


def _changelog(found: Any) -> str | None:
    if not isinstance(found, type):
        return _takes(found, "location", "application_id", "task_id")
    if not issubclass(found, (DeltaChangelog, LogChangelog)):
        return f"class {found.__name__} is derived neither from penstock.DeltaChangelog nor from penstock.LogChangelog"
    in_log = {"log": None, "stores": None} if issubclass(found, LogChangelog) else {}
    return _abstract(found) or _takes(found, "location", "application_id", "task_id", **in_log)


def _called_with(*arguments: str) -> Callable[[Any], str | None]:
    return lambda found: _abstract(found) or _takes(found, *arguments)


def _renderer(found: Any) -> str | None:
    wrong = _abstract(found) or _takes(found, "program")
    if wrong:
        return wrong
    made = found(Topology().add_source("source", "topic").build())
    return None if isinstance(made, str) else f"it returned {type(made).__name__} for a program, expected text"


def _setting(found: Any) -> str | None:
    if not isinstance(found, Setting):
        return f"it is {found!r}, expected a penstock.Setting"
    found.values.check(f"the default of setting {found.name!r}", found.default)
    return None


def _engine(found: Any) -> str | None:
    if not (inspect.isclass(found) and issubclass(found, Engine)):
        return f"expected a class of Engine (`penstock.plugins.engine.run.engine`), found {found!r}"
    return _abstract(found) or _takes(found)


def _companion(found: Any) -> str | None:
    return not_a_companion(found) or _takes(found, "run")


def _vocabulary(found: Any) -> str | None:
    needed = [name for name in dir(Vocabulary) if not name.startswith("_")]
    missing = [name for name in needed if not hasattr(found, name)]
    return f"it is {found!r}, and a Vocabulary has {', '.join(missing)}" if missing else None


def _abstract(found: Any) -> str | None:
    if not inspect.isabstract(found):
        return None
    missing = ", ".join(sorted(found.__abstractmethods__))
    return f"class {found.__name__} is abstract; write its method {missing}"


def _takes(found: Any, *arguments: Any, **named: Any) -> str | None:
    """Return why `function` cannot be called with these arguments."""
    try:
        inspect.signature(found).bind(*arguments, **named)
    except ValueError:
        return None  # Some callables written in C have no signature.
    except TypeError as error:
        shown = [*(argument if isinstance(argument, str) else repr(argument) for argument in arguments), *named]
        return f"it cannot be called with ({', '.join(shown)}): {error}"
    return None


_CHECKS: Mapping[str, Callable[[Any], str | None]] = {
    "processor": _processor,
    "store backend": _store_backend,
    "store kind": _called_with("spec", "bytes_store", "context"),
    "serde": _serde,
    "log": _called_with("location", "settings"),
    "changelog": _changelog,
    "renderer": _renderer,
    "sink": _abstract,
    "engine": _engine,
    "metrics reporter": _called_with("application_id", "settings"),
    "companion": _companion,
    "setting": _setting,
    "settings vocabulary": _vocabulary,
    "command": lambda found: None if isinstance(found, click.Command) else f"expected a click command, found {found!r}",
}


HEAVY = ("pyspark", "pandas", "pyarrow")
"""Modules that a module of hooks must not import: each takes up to a second, and some start threads, which no fork survives."""


@dataclass(frozen=True)
class Imported:
    """The effect of an import: the modules of `HEAVY` that it imported, and the text that it printed."""

    heavy: tuple[str, ...] = ()
    printed: str = ""


def imported(modules: Sequence[str]) -> list[Imported]:
    """Import each of `modules` in another process; return the effects of each import.

    A failed import counts as without effects.
    """
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
