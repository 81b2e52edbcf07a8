"""Plugins: every hook, and the look-up of what installed plugins bring."""

from .registry import (
    Component,
    PluginManager,
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
