"""PluginManager: pluggy's manager with the hooks of penstock, also for plugins that no package has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import pluggy

from ..errors import PluginError
from ..support.packages import DISTRIBUTION
from .rules import normal_name, wants
from .specs import GROUP, KINDS, MARK, Components, Hooks, hookimpl


class PluginReader(Protocol):
    """What a manager asks of the registry that reads its plugins."""

    def add_of_this_process(self, name: str, plugin: Any) -> list[str]:
        """Add a plugin that comes from no package; return why components of it are left out."""

    def forget(self, name: str) -> None:
        """Remove the components of a plugin."""

    def is_of_this_process(self, name: str) -> bool:
        """Return whether a plugin comes from no installed package."""

    def given_by(self, name: str) -> dict[str, dict[str, Any]]:
        """Return, by hook, the components by name of a plugin."""


class PluginManager(pluggy.PluginManager):
    """The plugins of a process, as pluggy knows them. `penstock.plugin_manager()` returns the one in use.

    The plugins of installed packages are registered by the names of their packages and entry points. What it does is
    traced in log lines of `penstock.hooks` at DEBUG, and by `penstock plugins --trace`.
    """

    def __init__(self, registry: PluginReader, trace: Callable[[str], object]) -> None:
        super().__init__(GROUP)
        self._registry = registry
        self.add_hookspecs(Hooks)
        self.trace.root.setwriter(lambda text: trace(text.rstrip()))

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """Add a plugin that no installed package has: an object or a module, with functions marked by `@hookimpl`.

        `name`: the prefix of its components' names, like a package's name; None: its class or module. It goes along
        with an application to the processes of its tasks. Returns the name. Raises PluginError for mistakes that
        `penstock plugins` reports of a package, and then adds nothing of the plugin.
        """
        name = normal_name(name or getattr(plugin, "__name__", type(plugin).__name__).rpartition(".")[2])
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or name == DISTRIBUTION:
            raise PluginError(
                f"plugin {name!r}: give it a name of letters, digits and dashes, as in register(plugin, 'acme'); "
                f"{DISTRIBUTION} is penstock's own"
            )
        if isinstance(self.get_plugin(name), SentPlugin):
            self.unregister(name=name)  # what brings it was imported in this process now
        if self.has_plugin(name):
            raise PluginError(f"plugin {name!r} is registered already: unregister it first, or give another name")
        if (known := self.get_name(plugin)) is not None:
            raise PluginError(f"plugin {name!r} is registered already, as {known!r}: unregister it first")
        wrong = self._registry.add_of_this_process(name, plugin)
        if wrong:
            if self.has_plugin(name):
                super().unregister(plugin, name)
            self._registry.forget(name)
            raise PluginError(f"plugin {name!r}: {'; '.join(wrong)}")
        return name

    def unregister(self, plugin: object | None = None, name: str | None = None) -> Any:
        """Remove a plugin that `register` has added, and its components. Raises PluginError for one of a package."""
        if name is None:
            name = self.get_name(plugin)
        elif not self.has_plugin(name):
            name = normal_name(name)
        if name is not None and not self._registry.is_of_this_process(name):
            raise PluginError(f"plugin {name!r} comes from an installed package: uninstall that package")
        removed = super().unregister(plugin, name)
        self._registry.forget(str(name))
        return removed

    def take(self, plugin: object, name: str) -> dict[str, str]:
        """Register a plugin with pluggy; return why some of its hooks, by name, are left out."""
        super().register(plugin, name)
        self.trace("registered", name)
        found = {hook: getattr(plugin, hook, None) for hook in KINDS.values()}
        lacking = {hook: wants(made) for hook, made in found.items() if hasattr(made, MARK)}
        return {hook: f"{hook} takes no arguments, this one does: {why}" for hook, why in lacking.items() if why}

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """Leave out functions that are no hook of ours or take arguments; the others stay."""
        options = super().parse_hookimpl_opts(plugin, name)
        return options if name in KINDS.values() and not wants(getattr(plugin, name)) else None

    def hooks_of(self, name: str) -> Iterator[tuple[str, str, Callable[[], Any]]]:
        """Yield (kind, hook, function) for each right hook of a plugin."""
        for kind, hook in KINDS.items():
            for found in getattr(self.hook, hook).get_hookimpls():
                if found.plugin_name == name:
                    yield kind, hook, found.function

    def of_this_process(self) -> list[tuple[str, SentPlugin]]:
        """Return the components of the plugins that `register` has added, with their names, to be sent."""
        names = (name for name, _ in self.list_name_plugin() if self._registry.is_of_this_process(name))
        return [(name, SentPlugin(given)) for name in names if (given := self._registry.given_by(name))]


class SentPlugin:
    """A plugin as it is sent to another process: its components by hook. Its hooks are not called again there.

    `given`: by hook, the components by name.
    """

    def __init__(self, given: Mapping[str, Components]) -> None:
        self._given = given
        vars(self).update({hook: _giving(components) for hook, components in given.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return SentPlugin, (self._given,)


def _giving(components: Components) -> Callable[[], Components]:
    @hookimpl
    def hook() -> Components:
        return components

    return hook
