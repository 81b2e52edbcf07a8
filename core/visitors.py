"""visitor: marks a processor's method that `penstock visit` has called with every key of a store."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from .errors import TopologyError
from .support.callbacks import check_plain

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "_penstock_visitor"
_WITHOUT_ARGUMENT = ("self", "key", "value")
_WITH_ARGUMENT = (*_WITHOUT_ARGUMENT, "argument")


class Visitor(NamedTuple):
    """What `visitor` says of a method.

    `store`: the store that it visits; None: the only one that its node is connected to. `takes_argument`: it is called
    with the argument of the visit, too. `needs_argument`: it cannot be called without one.
    """

    store: str | None
    takes_argument: bool
    needs_argument: bool


def visitor(store: str | None = None) -> Callable[[F], F]:
    """Mark a method of a Processor as a visitor of a store: it is called with each key and its value when asked for.

    `penstock visit` asks for it, also while the application runs. Each task then goes through its part of the store in
    portions between records, in the order of the keys as bytes, and calls `method(key, value)`, or `method(key, value,
    argument)`. A visit that is asked for without an argument has the default of the method's fourth parameter; without
    a default it is refused. As in a punctuator, there is no record; the method may forward, and put and delete in any
    store of the node. It all counts with the task's commits, and so does how far the visit is: each key that is there
    when the visit begins, and is not deleted before its turn, is visited once. Keys of window and session stores are
    `Windowed`.

    `store` names a store that the node is connected to; None: its only one. Raises TopologyError for a method that does
    not take these arguments. Semantics: goka's visitors.

    >>> from penstock import Processor
    >>> class Totals(Processor):
    ...     def process(self, record):
    ...         self.context.get_store("totals").put(record.key, record.value)
    ...     @visitor("totals")
    ...     def drop_zeros(self, key, value):
    ...         if value == 0:
    ...             self.context.get_store("totals").delete(key)
    """
    if store is not None and not isinstance(store, str):
        raise TopologyError(
            f"visitor: expected the name of a store, found {store!r}: write @visitor() or @visitor(NAME)"
        )

    def mark(method: F) -> F:
        name = getattr(method, "__qualname__", repr(method))
        check_plain("visitor", name, method)
        signature = inspect.signature(method)
        takes, needs = _takes(signature, _WITH_ARGUMENT), not _takes(signature, _WITHOUT_ARGUMENT)
        if needs and not takes:
            raise TopologyError(
                f"visitor {name}: it is called with (key, value), or with (key, value, argument), and takes {signature}"
            )
        setattr(method, _MARK, Visitor(store, takes, needs))
        return method

    return mark


def _takes(signature: inspect.Signature, arguments: tuple[str, ...]) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def visitors_of(kind: type) -> Mapping[str, Visitor]:
    """Return the visitors of a processor's class, by the names of the methods."""
    names = (name for name in dir(kind) if not name.startswith("__"))
    # Statically: an attribute of the class may be a closed store, which refuses every look at it.
    found = {name: inspect.getattr_static(getattr(kind, name, None), _MARK, None) for name in names}
    return {name: each for name, each in found.items() if isinstance(each, Visitor)}
