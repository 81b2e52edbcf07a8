"""Which processors have timers, and the declaration of the store that keeps them."""

from __future__ import annotations

import functools
from typing import Any

from ..errors import TopologyError
from ..processor import Processor, ValueTransformer
from ..store.kinds.timers import TimerStoreSpec
from ..support.names import timer_store_name
from .serdes import SerdeLike
from .wrapping import WrappingProcessor


def timer_store(
    where: str, node: str, supplier: object, timers: bool | None, key_serde: SerdeLike
) -> list[TimerStoreSpec]:
    """Return the declaration of the store of a node's timers, in a list; an empty list if it has none.

    It has timers if `timers` says so, or (None) if its supplier is a class with an `on_timer` of its own. A class that
    wraps another processor does not show whether that has any.
    """
    kind: Any = supplier
    while isinstance(kind, functools.partial):
        kind = kind.func
    is_class = isinstance(kind, type)
    has_callback = is_class and issubclass(kind, Processor) and kind.on_timer is not Processor.on_timer
    if timers and is_class and not has_callback:
        what = "is a ValueTransformer" if issubclass(kind, ValueTransformer) else "does not override on_timer"
        raise TopologyError(f"{where}: timers=True, and {kind.__name__} {what}: nothing could be called")
    wraps = is_class and issubclass(kind, WrappingProcessor)
    if timers or (timers is None and has_callback and not wraps):
        return [TimerStoreSpec(timer_store_name(node), key_serde=key_serde)]
    if key_serde is not None:
        raise TopologyError(
            f"{where}: timer_key_serde is given, and the node has no timers: override on_timer in its class, or say "
            "timers=True where a function makes the processor"
        )
    return []
