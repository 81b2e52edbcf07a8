"""Plugins: every hook, and the look-up of what installed plugins bring."""

from .registry import Component, Registry, registry
from .specs import GROUP, KINDS, MARK, Components, Hooks, hookimpl, hookspec

__all__ = [
    "GROUP",
    "KINDS",
    "MARK",
    "Component",
    "Components",
    "Hooks",
    "Registry",
    "hookimpl",
    "hookspec",
    "registry",
]
