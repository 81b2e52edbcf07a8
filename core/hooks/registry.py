"""The registry: the components of installed plugins, looked up by kind and name."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..errors import MissingPackageError, PluginError
from ..support.packages import DISTRIBUTION
from .manager import PluginManager, SentPlugin
from .rules import checked_components, has_prefix, prefixes_of, wrong_hooks
from .specs import GROUP, KINDS, MARK

OF_THIS_PROCESS = "of this process"
"""Stands for the version of a plugin that comes from no package."""
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
        source = "plugin" if self.package_version == OF_THIS_PROCESS else "package"
        return f"{self.kind} {self.name!r} of {source} {self.package} {self.package_version}"


class Registry:
    """The components of the plugins of a process."""

    def __init__(
        self,
        found: Sequence[tuple[str, str, str, Any]],
        broken: Mapping[str, str],
        trace: Callable[[str], object] | None = None,
    ) -> None:
        """Take (entry point, package, version, module) of each plugin, and why others could not be loaded.

        `trace` is called with a text for each step; None: they are log lines at DEBUG.
        """
        self.broken = dict(broken)
        self.manager = PluginManager(self, trace or _trace)
        self.components: dict[tuple[str, str], Component] = {}
        self._ambiguous: dict[tuple[str, str], str] = {}
        self._refused: dict[tuple[str, str], str] = {}
        # Ours first: no other package can take their names.
        for point, package, version, plugin in sorted(found, key=lambda each: each[1] != DISTRIBUTION):
            self.add(point, package, version, plugin)
        self.manager.check_pending()

    def add(self, point: str, package: str, version: str, plugin: Any) -> None:
        """Register a plugin, and add its components. Wrong ones are left out, and listed in `broken`."""
        where = f"{package} {version} ({point}"
        # A plugin is its module: packages need not know how others name their entry points.
        if (reader := self.manager.get_name(plugin)) is not None:
            why = f"its module is that of entry point {reader.partition(':')[2]!r}: remove one of the two"
            self.broken[f"{where})"] = why
            return
        name = package if package == point and version == OF_THIS_PROCESS else f"{package}:{point}"
        try:
            wrong = list(wrong_hooks(plugin, MARK, list(KINDS.values())))
        except Exception as error:
            wrong = [_said(error)]
        for number, why in enumerate(wrong):
            self.broken[f"{where}{f', {number + 1}' if number else ''})"] = why
        try:
            lacking = self.manager.take(plugin, name)
        except Exception as error:  # an attribute of it raises
            lacking = {"hooks": _said(error)}
        for hook, why in lacking.items():
            self.broken[f"{where}: {hook})"] = why
        for kind, hook, function in self.manager.hooks_of(name):
            self._take(kind, hook, point, package, version, function)

    def add_of_this_process(self, name: str, plugin: Any) -> list[str]:
        """Add a plugin that comes from no package; return why components of it are left out."""
        self.add(name, name, OF_THIS_PROCESS, plugin)
        return [why for where, why in self.broken.items() if where.startswith(f"{name} {OF_THIS_PROCESS} (")]

    def forget(self, name: str) -> None:
        """Remove the components and errors of a plugin that `PluginManager.register` added."""
        where = f"{name} {OF_THIS_PROCESS}"
        for key in [key for key, each in self.components.items() if _is_of(each, name)]:
            del self.components[key]
        for each in [each for each in self.broken if each.startswith(f"{where} (")]:
            del self.broken[each]
        for known in (self._ambiguous, self._refused):
            for key in [key for key, why in known.items() if where in why]:
                del known[key]

    def given_by(self, name: str) -> dict[str, dict[str, Any]]:
        """Return, by hook, the components by name of a plugin that was registered by `PluginManager.register`."""
        given: dict[str, dict[str, Any]] = {}
        for component in list(self.components.values()):
            if _is_of(component, name):
                given.setdefault(KINDS[component.kind], {})[component.name] = component.target
        return given

    def is_of_this_process(self, name: str) -> bool:
        """Return whether a plugin was registered by `PluginManager.register`, and comes from no installed package."""
        return ":" not in name

    def _take(self, kind: str, hook: str, point: str, package: str, version: str, function: Any) -> None:
        """Add the components of one hook of a plugin; wrong ones are left out."""
        where = f"{package} {version} ({point}: "
        try:
            with plugin_code():
                given, wrong = checked_components(hook, function, package)
        except Exception as error:
            self.broken[f"{where}{hook})"] = _said(error)
            return
        for name, why in wrong.items():
            self.broken[f"{where}{kind} {name})"] = why
            self._refused[kind, str(name)] = f"{package} {version}: {why}"
        self.manager.trace(f"{package}: {hook} gives", sorted(given))
        for name, target in given.items():
            self._add(Component(kind, name, target, point, package, version))

    def _add(self, component: Component) -> None:
        """Add a component, unless its name lacks its package's prefix. A name of two packages is refused at look-up."""
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
                f"{_package(other)} and {_package(component)}: uninstall one of them"
            )
        else:
            self.components[key] = component
            return
        where = f"{component.plugin}: {component.kind} {component.name}"
        self.broken[f"{component.package} {component.package_version} ({where})"] = why

    def names(self, kind: str) -> list[str]:
        """Return the names of all components of a kind, sorted."""
        return sorted(name for of, name in list(self.components) if of == kind)

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


def registry() -> Registry:
    """Return the registry that is in use: that of the installed plugins, unless `plugins_in_use` gives another."""
    return _in_use[-1] if _in_use else installed_plugins()


def plugin_manager() -> PluginManager:
    """Return the manager of the plugins that are in use, to register an object that no installed package has.

    What is registered goes along with an application to its task hosts and to Spark, as the application itself does.
    """
    return registry().manager


def register_sent(plugins: Sequence[tuple[str, SentPlugin]]) -> None:
    """Register plugins sent by another process, in place of earlier sent ones, unless this process has its own."""
    manager = plugin_manager()
    for name, plugin in manager.list_name_plugin():
        if isinstance(plugin, SentPlugin):
            manager.unregister(name=name)
    for name, plugin in plugins:
        if not manager.has_plugin(name):
            manager.register(plugin, name)


def _is_of(component: Component, name: str) -> bool:
    return (component.package, component.package_version) == (name, OF_THIS_PROCESS)


def _package(component: Component) -> str:
    """Return a component's package, for messages about two packages."""
    is_of_this_process = component.package_version == OF_THIS_PROCESS
    return f"{component.package} {OF_THIS_PROCESS}" if is_of_this_process else component.package


_in_use: list[Registry] = []


@contextmanager
def plugins_in_use(found: Registry) -> Iterator[None]:
    """Look up everything in another registry until the end of the block, in all threads of the process."""
    _in_use.append(found)
    try:
        yield
    finally:
        _in_use.remove(found)


@cache
def installed_plugins() -> Registry:
    """Return the registry of the installed plugins, which are read once per process."""
    return read_plugins()


def read_plugins(trace: Callable[[str], object] | None = None, *, only: str | None = None) -> Registry:
    """Read the installed plugins, or those of one distribution. `trace`: as of Registry.

    One that cannot be imported is listed in `broken`, and harms no other.
    """
    found, broken = [], {}
    for point in sorted(entry_points(group=GROUP), key=lambda each: (*_distribution(each), each.name, each.value)):
        package, version = _distribution(point)
        if only not in (None, package):
            continue
        try:
            with plugin_code():
                found.append((point.name, package, version, point.load()))
        except Exception as error:
            broken[f"{package} {version} ({point.name})"] = _said(error)
    return Registry(found, broken, trace)


def _trace(text: str) -> None:
    _log.debug("%s", text)


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
