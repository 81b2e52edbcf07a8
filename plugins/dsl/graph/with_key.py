"""The keyword arguments of verbs whose functions get the value, or with `with_key=True` the key before it."""

from __future__ import annotations

from typing import Literal, Required, TypedDict

from penstock.program.serdes import SerdeLike

from .materialized import StoreOptions, WindowOptions


class WithoutKey(TypedDict, total=False):
    """For functions of the value. `name` is the node's."""

    with_key: Literal[False]
    name: str | None


class WithKey(TypedDict, total=False):
    """For functions of key and value. `name` is the node's."""

    with_key: Required[Literal[True]]
    name: str | None


class StoreWithoutKey(StoreOptions, WithoutKey):
    """For functions of the value, and a store."""


class StoreWithKey(StoreOptions, WithKey):
    """For functions of key and value, and a store."""


class WindowWithoutKey(WindowOptions, WithoutKey):
    """For functions of the value, and a store of windows."""


class WindowWithKey(WindowOptions, WithKey):
    """For functions of key and value, and a store of windows."""


class GroupingWithoutKey(WithoutKey, total=False):
    """For a grouping by functions of the value; serdes are those behind it."""

    key_serde: SerdeLike
    value_serde: SerdeLike


class GroupingWithKey(WithKey, total=False):
    """For a grouping by functions of key and value; serdes are those behind it."""

    key_serde: SerdeLike
    value_serde: SerdeLike
