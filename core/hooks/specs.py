"""Every hook of penstock.

A plugin is a module that an entry point of the group `penstock` names. Each hook it
implements returns a mapping from a name to where the thing is: "package.module:attribute" (loaded
when the name is first used) or the thing itself. The module should import nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pluggy

GROUP = "penstock"
MARK = f"{GROUP}_impl"
"""The attribute that `@hookimpl` sets."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)

Components = Mapping[str, Any]
"""Components by name: each itself, or its place as `package.module:attribute`."""

Spec = TypeVar("Spec", bound=Callable[..., Components])


def _gives(kind: str) -> Callable[[Spec], Spec]:
    """Mark a method of `Hooks` as a hook; `kind` names the hook's components in messages."""

    def mark(spec: Spec) -> Spec:
        spec.kind = kind  # type: ignore[attr-defined]
        return hookspec(spec)

    return mark


class Hooks:
    """The hooks. Names of a plugin from another distribution start with its own name and a dot: "acme.dedupe"."""

    @_gives("processor")
    def penstock_processors(self) -> Components:
        """Return processors by name: suppliers, called with the keyword arguments given in the topology."""
        raise NotImplementedError

    @_gives("store backend")
    def penstock_store_backends(self) -> Components:
        """Return store backends by name: each a StoreBackendFactory."""
        raise NotImplementedError

    @_gives("store kind")
    def penstock_store_kinds(self) -> Components:
        """Return store kinds by name: functions from a StoreSpec, a BytesStore and a StoreContext to a StateStore."""
        raise NotImplementedError

    @_gives("serde")
    def penstock_serdes(self) -> Components:
        """Return serdes by name: classes or factories called without arguments, returning a Serde.

        They are called with the text after a colon where a name has one ("windowed:str:60s").
        """
        raise NotImplementedError

    @_gives("log")
    def penstock_logs(self) -> Components:
        """Return logs by name: each a LogFactory."""
        raise NotImplementedError

    @_gives("changelog")
    def penstock_changelogs(self) -> Components:
        """Return changelogs by name: each a Changelog, which opens a DeltaChangelog, or a class of LogChangelog."""
        raise NotImplementedError

    @_gives("sink")
    def penstock_sinks(self) -> Components:
        """Return targets outside of the log by name: each makes a Sink or StagedSink of its keyword arguments."""
        raise NotImplementedError

    @_gives("renderer")
    def penstock_renderers(self) -> Components:
        """Return renderers by name: functions that take a Program and return text."""
        raise NotImplementedError

    @_gives("engine")
    def penstock_engines(self) -> Components:
        """Return engines by name, which run applications: classes, made without arguments, of `Engine`s."""
        raise NotImplementedError

    @_gives("companion")
    def penstock_companions(self) -> Components:
        """Return companions of runs, by name: classes of `Companion`, made with a RunView."""
        raise NotImplementedError

    @_gives("metrics reporter")
    def penstock_metrics_reporters(self) -> Components:
        """Return reporters of metrics by name: functions from an application's id and Settings to a MetricsReporter."""
        raise NotImplementedError

    @_gives("setting")
    def penstock_settings(self) -> Components:
        """Return settings by name: each a Setting, which the plugin that declares it reads (`Setting.of`)."""
        raise NotImplementedError

    @_gives("settings vocabulary")
    def penstock_settings_vocabularies(self) -> Components:
        """Return vocabularies of settings by name: each a Vocabulary (`penstock.settings.names`)."""
        raise NotImplementedError

    @_gives("command")
    def penstock_cli_commands(self) -> Components:
        """Return commands by name: click commands, added to `penstock`."""
        raise NotImplementedError


KINDS: Mapping[str, str] = {spec.kind: name for name, spec in vars(Hooks).items() if hasattr(spec, "kind")}
"""Kind of component -> the hook that gives it."""
