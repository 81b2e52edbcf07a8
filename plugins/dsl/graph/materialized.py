"""Materialized: the store of a table or an aggregation, as the user chose it, and the store that it declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock import (
    KeyValueStoreSpec,
    SessionStoreSpec,
    StoreSpec,
    TopologyError,
    VersionedStoreSpec,
    WindowStoreSpec,
    duration_ms,
    key_value_store,
    session_store,
    window_store,
)

from .functions import check_options
from .names import Names, checked
from .options import StoreLike, StoreOptions
from .serdes import KnownSerde, Serdes, key_of_store, value_of_store
from .step import Writer

TableStoreSpec = KeyValueStoreSpec | VersionedStoreSpec | WindowStoreSpec | SessionStoreSpec
"""A declared store of a table."""

Filled = TypeVar("Filled", KeyValueStoreSpec, WindowStoreSpec, SessionStoreSpec)


@dataclass(frozen=True)
class Materialized:
    """The store of one verb. `is_named`: the user chose the name. `given`: the declared store, if there is one."""

    verb: str
    name: str
    is_named: bool
    given: StoreSpec | None
    options: Mapping[str, Any]

    @property
    def exists(self) -> bool:
        """Whether there is a store: a verb that needs none has one only if its user asks for it."""
        return bool(self.name)

    @property
    def own_name(self) -> str | None:
        """The name that the user chose; None: it is numbered."""
        return self.name if self.is_named else None

    @property
    def history_ms(self) -> int | None:
        """How long the store keeps versions; None: it keeps none."""
        return self.given.history_retention_ms if isinstance(self.given, VersionedStoreSpec) else None

    @property
    def is_versioned(self) -> bool:
        """Whether the store keeps versions."""
        return self.history_ms is not None

    @property
    def expiring(self) -> str | None:
        """The name of the store, if its entries expire by `ttl`."""
        if self.given is None:
            return self.name if self.options.get("ttl") is not None else None
        return self.name if isinstance(self.given, KeyValueStoreSpec) and self.given.ttl_ms is not None else None

    def serdes(self, known: Serdes) -> Serdes:
        """Return the serdes of the store's keys and values: the given ones, else the known ones."""
        return known.given(self._given_serde("key_serde"), self._given_serde("value_serde"))

    def key_value(self, writer: Writer, serdes: Serdes) -> TableStoreSpec:
        """Return the declared key-value store, with timestamps; or the versioned one that the user declared."""
        if isinstance(self.given, VersionedStoreSpec):
            return dataclasses.replace(self.given, **_serdes_of_store(writer, serdes))
        form = {"timestamped": True, **_serdes_of_store(writer, serdes)}
        if self.given is not None:
            return self._filled(KeyValueStoreSpec, writer, form)
        return key_value_store(self.name, **form, **self._chosen(writer, "ttl", "ttl_clock"))

    def window(self, writer: Writer, serdes: Serdes, retention_ms: int, size_ms: int, form: str) -> TableStoreSpec:
        """Return the declared window store, with timestamps. `retention_ms` is the least that the windows need."""
        options = {"timestamped": True, **_serdes_of_store(writer, serdes)}
        if self.given is not None:
            kept_ms = max(retention_ms, getattr(self.given, "retention_ms", 0))
            return self._filled(WindowStoreSpec, writer, {**options, "retention_ms": kept_ms, "windows": form})
        times: dict[str, Any] = {"retention": f"{self._retention(retention_ms)}ms", "window_size": f"{size_ms}ms"}
        return dataclasses.replace(window_store(self.name, **times, **options, **self._chosen(writer)), windows=form)

    def session(self, writer: Writer, serdes: Serdes, retention_ms: int, form: str) -> TableStoreSpec:
        """Return the declared session store."""
        options = _serdes_of_store(writer, serdes)
        if self.given is not None:
            kept_ms = max(retention_ms, getattr(self.given, "retention_ms", 0))
            return self._filled(SessionStoreSpec, writer, {**options, "retention_ms": kept_ms, "windows": form})
        retention = f"{self._retention(retention_ms)}ms"
        made = session_store(self.name, retention=retention, **options, **self._chosen(writer))
        return dataclasses.replace(made, windows=form)

    # ------------------------------------------------------------------ parts

    def _retention(self, least_ms: int) -> int:
        """Return the user's retention, or the store's need if that is more; the verb refuses a short one."""
        if "retention" not in self.options:
            return least_ms
        return max(least_ms, duration_ms(self.options["retention"], f"retention of store {self.name!r}"))

    def _chosen(self, writer: Writer, *more: str) -> dict[str, Any]:
        """Return the options of an undeclared store, from the user and the settings."""
        given = kept_options(self.options, *more)
        cached = self.options.get("cached", True) and writer.has_record_cache
        return {"headers": has_headers(writer), "cached": cached, **given}

    def _filled(self, kind: type[Filled], writer: Writer, options: Mapping[str, Any]) -> Filled:
        """Return the declared store with more options. Raises TopologyError for a store of another kind."""
        spec = self.given
        if not isinstance(spec, kind):
            raise TopologyError(
                f"{self.verb}: store {self.name!r} is a {type(spec).__name__}, expected a {kind.__name__}"
            )
        headers, cached = spec.headers or has_headers(writer), spec.cached and writer.has_record_cache
        return dataclasses.replace(spec, headers=headers, cached=cached, **options)

    def _given_serde(self, option: str) -> KnownSerde:
        serde: KnownSerde = self.options.get(option)
        return getattr(self.given, option, None) if serde is None else serde


def materialized(
    verb: str,
    names: Names,
    store: StoreLike | None,
    options: Mapping[str, Any],
    prefix: str,
    known: Iterable[str] = StoreOptions.__annotations__,
) -> Materialized:
    """Return the store of a verb; without `store`, its name is numbered, after `prefix`.

    `known` are the options that the verb takes. Raises TopologyError for others, and for a name that is taken.
    """
    check_options(verb, options, known)
    if store is None:
        how = f'{verb}("NAME")'
        return Materialized(verb, names.store(prefix, how), False, None, dict(options))
    if isinstance(store, StoreSpec):
        extra = set(options) - {"key_serde", "value_serde"}
        if extra:
            raise TopologyError(
                f"{verb}: {', '.join(sorted(extra))} belong to the declared store {store.name!r}; say it there"
            )
        return Materialized(verb, names.own_store(store.name, verb), True, store, dict(options))
    if not isinstance(store, str):
        raise TopologyError(f"{verb}: expected the name of a store or a declared one, found {store!r}")
    return Materialized(verb, names.own_store(checked(store), verb), True, None, dict(options))


def optional(verb: str, names: Names, store: StoreLike | None, options: Mapping[str, Any], prefix: str) -> Materialized:
    """Return the store of a verb that needs none; without `store` it does not exist, and has serdes only."""
    if store is not None:
        return materialized(verb, names, store, options, prefix)
    check_options(verb, options, StoreOptions.__annotations__)
    of_stores = sorted(set(options) - {"key_serde", "value_serde"})
    if of_stores:
        raise TopologyError(
            f'{verb}: {", ".join(of_stores)} belongs to a store, and {verb} has none here; write store="NAME"'
        )
    if options:
        # Kafka Streams uses up a number where only serdes are given.
        names.step(prefix)
    return Materialized(verb, "", False, None, dict(options))


def kept_options(options: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """Return the options of a verb that are about the keeping of its store, and `more`."""
    return {each: options[each] for each in ("backend", "logged", "topic_config", *more) if each in options}


def has_headers(writer: Writer) -> bool:
    """Return whether the stores of the DSL keep headers (KIP-1285)."""
    return writer.settings.dsl_store_format == "headers"


def _serdes_of_store(writer: Writer, serdes: Serdes) -> dict[str, Any]:
    key, value = key_of_store(serdes.key, writer.settings), value_of_store(serdes.value, writer.settings)
    return {"key_serde": key, "value_serde": value}
