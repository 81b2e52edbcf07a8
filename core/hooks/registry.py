"""The registry: what installed plugins bring, looked up by kind and name."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..errors import MissingPackageError, PluginError
from ..support.packages import DISTRIBUTION
from .rules import checked_components, has_prefix, prefixes_of, wrong_hooks
from .specs import GROUP, KINDS, MARK

_log = logging.getLogger("penstock.hooks")
_NOT_CALLED = frozenset({"setting", "settings vocabulary", "command"})
"""Kinds of components that nobody calls."""


@dataclass(frozen=True)
class Component:
    """One named thing that an installed plugin brings."""

    kind: str
    name: str
    target: Any
    plugin: str
    package: str
    package_version: str

    def load(self) -> Any:
        """Import and return the thing.

        Raises PluginError when that fails, or when the thing cannot be called; MissingPackageError when it needs a
        package that is not installed.
        """
        return self._found

    @cached_property
    def _found(self) -> Any:
        found = self.target
        if isinstance(self.target, str):
            module, _, attribute = self.target.partition(":")
            try:
                with plugin_code():
                    found = import_module(module)
                    for part in attribute.split("."):
                        found = getattr(found, part)
            except MissingPackageError:
                raise
            except Exception as error:
                raise PluginError(f"{self.title} cannot be loaded from {self.target!r}: {_said(error)}") from error
        if not callable(found) and self.kind not in _NOT_CALLED:
            raise PluginError(f"{self.title} is {found!r}, which cannot be called: name its class, or a function")
        return found

    @property
    def title(self) -> str:
        """The component's name in messages."""
        return f"{self.kind} {self.name!r} of package {self.package} {self.package_version}"


class Registry:
    """The components of the installed plugins, read once per process."""

    def __init__(self, found: list[tuple[str, str, str, Any]], broken: Mapping[str, str]) -> None:
        """Take (entry point, package, version, module) of each plugin, and why others could not be loaded."""
        self.broken = dict(broken)
        self.components: dict[tuple[str, str], Component] = {}
        self._ambiguous: dict[tuple[str, str], str] = {}
        self._refused: dict[tuple[str, str], str] = {}
        readers: dict[int, str] = {}
        # Ours first: no other package can take their names. A plugin is its module: packages need not know how others
        # name their entry points.
        for point, package, version, plugin in sorted(found, key=lambda each: each[1] != DISTRIBUTION):
            where = f"{package} {version} ({point}"
            if id(plugin) in readers:
                why = f"its module is that of entry point {readers[id(plugin)]!r}: remove one of the two"
                self.broken[f"{where})"] = why
                continue
            readers[id(plugin)] = point
            try:
                wrong = list(wrong_hooks(plugin, MARK, list(KINDS.values())))
            except Exception as error:
                wrong = [_said(error)]
            for number, why in enumerate(wrong):
                self.broken[f"{where}{f', {number + 1}' if number else ''})"] = why
            for kind, hook in KINDS.items():
                self._take(kind, hook, point, package, version, getattr(plugin, hook, None))

    def _take(self, kind: str, hook: str, point: str, package: str, version: str, function: Any) -> None:
        """Add what a hook of a plugin gives. What is wrong drops itself only."""
        if not hasattr(function, MARK):
            return
        where = f"{package} {version} ({point}: "
        try:
            with plugin_code():
                given, wrong = checked_components(hook, function, package)
        except Exception as error:
            self.broken[f"{where}{hook})"] = _said(error)
            return
        for name, why in wrong.items():
            self.broken[f"{where}{kind} {name})"] = self._refused[kind, str(name)] = why
        for name, target in given.items():
            self._add(Component(kind, name, target, point, package, version))

    def _add(self, component: Component) -> None:
        """Add a component, unless its name is not its package's; one that two packages bring is refused at look-up."""
        key = component.kind, component.name
        other = self.components.get(key)
        prefixes = prefixes_of(component.package)
        if other is not None and other.package == DISTRIBUTION:
            why = f"it is the name of penstock's own, which stays in use: call it {prefixes[0]}.{component.name}"
            self._refused[key] = f"{component.title}: {why}"
        elif component.package != DISTRIBUTION and not has_prefix(component.kind, component.name, prefixes):
            why = (
                "a name of another package begins with the package's name and a dot: call it "
                f"{prefixes[0]}.{component.name}"
            )
            self._refused[key] = f"{component.title}: {why}"
        elif other is not None:
            self._ambiguous[key] = why = (
                f"{component.kind} {component.name!r} comes from two packages, "
                f"{other.package} and {component.package}: uninstall one of them"
            )
        else:
            self.components[key] = component
            return
        where = f"{component.plugin}: {component.kind} {component.name}"
        self.broken[f"{component.package} {component.package_version} ({where})"] = why

    def names(self, kind: str) -> list[str]:
        """Return the names of all components of a kind, sorted."""
        return sorted(name for of, name in self.components if of == kind)

    def find(self, kind: str, name: str) -> Component:
        """Return a component. Raises PluginError when no package brings it, or two do."""
        if (kind, name) in self._ambiguous:
            raise PluginError(self._ambiguous[kind, name])
        component = self.components.get((kind, name))
        refused = self._refused.get((kind, name))
        if component is not None:
            if refused is not None:
                _log.warning("%s", self._refused.pop((kind, name)))
            return component
        if refused is not None:
            raise PluginError(refused)
        names = self.names(kind)
        close = get_close_matches(name, names, 3, 0.5)
        raise PluginError(
            f"no {kind} named {name!r} is installed; installed: {', '.join(names) or 'none'}."
            + (f" Did you mean {' or '.join(map(repr, close))}?" if close else "")
            + " Install the package that brings it (`penstock plugins` lists them)."
            + "".join(f" Note: plugin {which} could not be loaded: {why}" for which, why in self.broken.items())
        )

    def load(self, kind: str, name: str) -> Any:
        """Return the thing of that name, imported when first used."""
        return self.find(kind, name).load()


@cache
def registry() -> Registry:
    """Return the registry. A plugin that cannot be imported is listed in `broken`, and harms no other."""
    found, broken = [], {}
    for point in sorted(entry_points(group=GROUP), key=lambda each: (*_distribution(each), each.name, each.value)):
        package, version = _distribution(point)
        try:
            with plugin_code():
                found.append((point.name, package, version, point.load()))
        except Exception as error:
            broken[f"{package} {version} ({point.name})"] = _said(error)
    return Registry(found, broken)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"


def _distribution(point: EntryPoint) -> tuple[str, str]:
    return (point.dist.name, point.dist.version) if point.dist is not None else ("unknown", "unknown")


_redirecting = threading.Lock()


@contextmanager
def plugin_code() -> Iterator[None]:
    """Run code of a plugin: `sys.exit` is a PluginError, and what it prints goes to stderr.

    Stdout is the output of a command. The text is not kept for a log line: a logging handler that a module makes when
    it is imported keeps the stream that it found, and has to write to one that lasts.
    """
    # Stdout is the process's, so one thread at a time redirects it; plugins that load others are within the first one.
    first = _redirecting.acquire(blocking=False)
    try:
        with redirect_stdout(sys.stderr) if first else nullcontext():
            yield
    except SystemExit as error:
        raise PluginError(f"it called sys.exit({error.code!r}); a plugin raises errors instead") from error
    finally:
        if first:
            _redirecting.release()
