"""Declarations of a supplier of processors: the stores that it brings, and the store to which its state belongs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import TopologyError
from ..processor import Processor
from ..store import StoreBuilder


def provided_stores(where: str, supplier: object, options: Mapping[str, Any]) -> tuple[StoreBuilder, ...]:
    """Return the stores that the `stores` of a supplier declares, called with the arguments that the supplier gets.

    Raises TopologyError for a `stores` that cannot be called so, or that returns something else than declared stores.
    """
    maker, arguments, named = _unwrapped(supplier, options)
    if getattr(maker, "stores", None) is None:
        return ()
    check_provider(where, maker)
    what, given = _asked(where, maker, "stores", arguments, named)
    stores = tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, StoreBuilder)) else None
    if stores is None or not all(isinstance(store, StoreBuilder) for store in stores):
        raise TopologyError(
            f"{what} returned {given!r}, expected a list of declared stores, for instance [key_value_store(NAME)]"
        )
    return stores


def saved_with(where: str, supplier: object, options: Mapping[str, Any]) -> str | None:
    """Return the store that a processor's saved data belongs to, by its class; None if it belongs to the node."""
    maker, arguments, named = _unwrapped(supplier, options)
    if not isinstance(maker, type) or not issubclass(maker, Processor):
        return None
    store: str | None = _asked(where, maker, "saved_with", arguments, named)[1]
    return store


def stores_saved_with(
    where: str, supplier: object, options: Mapping[str, Any], stores: Sequence[str]
) -> tuple[str, ...]:
    """Check that this store, if any, is one of `stores`, and return it. Raises TopologyError."""
    store = saved_with(where, supplier, options)
    if store is not None and store not in stores:
        raise TopologyError(
            f"{where}: its saved_with names store {store!r}, to which it is not connected; connected: "
            f"{', '.join(stores) or 'none'}"
        )
    return () if store is None else (store,)


def _unwrapped(supplier: object, options: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the supplier of processors inside of `functools.partial`, and the arguments that it gets."""
    maker: Any = supplier
    arguments: tuple[Any, ...] = ()
    named = dict(options)
    while isinstance(maker, functools.partial):
        arguments, named = (*maker.args, *arguments), {**maker.keywords, **named}
        maker = maker.func
    return maker, arguments, named


def _asked(where: str, maker: Any, asked: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[str, Any]:
    """Call a supplier's attribute `asked` with the supplier's arguments; return its full name and its result."""
    ask, name = getattr(maker, asked), getattr(maker, "__qualname__", type(maker).__qualname__)
    what = f"{where}: {name}.{asked}"
    try:
        inspect.signature(ask).bind(*arguments, **named)
    except ValueError:
        pass  # Some callables written in C have no signature.
    except TypeError as error:
        raise TopologyError(
            f"{what} is called with the options of the node, {sorted(named) or 'none'}, as {name} itself is: {error}; "
            "give it the same parameters, or **options"
        ) from error
    try:
        return what, ask(*arguments, **named)
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from error
    except Exception as error:
        raise TopologyError(f"{what} raised {type(error).__name__}: {error}") from error


def check_provider(where: str, maker: object) -> None:
    """Refuse a supplier whose attribute `stores` is no function that can be called without an instance."""
    ask = getattr(maker, "stores", None)
    if ask is None:
        return
    if not callable(ask) or (inspect.isfunction(inspect.getattr_static(maker, "stores")) and isinstance(maker, type)):
        name = getattr(maker, "__qualname__", type(maker).__qualname__)
        raise TopologyError(
            f"{where}: {name}.stores declares the stores that its processors bring, and is a @classmethod that returns "
            f"them: found {ask!r}"
        )
