"""Plugins: every hook, and the look-up of what installed plugins bring."""

from .manager import PluginManager
from .registry import (
    OF_THIS_PROCESS,
    Component,
    Registry,
    plugin_manager,
    plugins_in_use,
    read_plugins,
    register_sent,
    registry,
)
from .specs import GROUP, KINDS, MARK, Components, Hooks, hookimpl, hookspec

__all__ = [
    "GROUP",
    "KINDS",
    "MARK",
    "OF_THIS_PROCESS",
    "Component",
    "Components",
    "Hooks",
    "PluginManager",
    "Registry",
    "hookimpl",
    "hookspec",
    "plugin_manager",
    "plugins_in_use",
    "read_plugins",
    "register_sent",
    "registry",
]
