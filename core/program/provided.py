"""The stores that a supplier of processors brings itself, so that a topology need not declare them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import TopologyError
from ..store import StoreBuilder


def provided_stores(where: str, supplier: object, options: Mapping[str, Any]) -> tuple[StoreBuilder, ...]:
    """Return what the `stores` of a supplier declares, called with the arguments that the supplier gets.

    Raises TopologyError for a `stores` that cannot be called so, or that returns something else than declared stores.
    """
    maker: Any = supplier
    arguments: tuple[Any, ...] = ()
    named = dict(options)
    while isinstance(maker, functools.partial):
        arguments, named = (*maker.args, *arguments), {**maker.keywords, **named}
        maker = maker.func
    ask = getattr(maker, "stores", None)
    if ask is None:
        return ()
    check_provider(where, maker)
    name = getattr(maker, "__qualname__", type(maker).__qualname__)
    what = f"{where}: {name}.stores"
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
        given = ask(*arguments, **named)
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from error
    except Exception as error:
        raise TopologyError(f"{what} raised {type(error).__name__}: {error}") from error
    stores = tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, StoreBuilder)) else None
    if stores is None or not all(isinstance(store, StoreBuilder) for store in stores):
        raise TopologyError(
            f"{what} returned {given!r}, expected a list of declared stores, for instance [key_value_store(NAME)]"
        )
    return stores


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
