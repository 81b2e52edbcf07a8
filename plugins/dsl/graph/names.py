"""Names: gives steps, stores and internal topics their names, numbered as Kafka Streams numbers them."""

from __future__ import annotations

import re
from typing import Any

from penstock import TopologyError
from penstock.support.names import is_topic_name


class Names:
    """One running number for all names of a program, in the order of its verbs.

    So `describe()` and the names of internal topics are those of the same program in Java. `generated` has the names of
    state that nobody chose, and how to choose them: such a name changes when a verb is added before it (KIP-1111).
    """

    def __init__(self) -> None:
        self._next = 0
        self.generated: dict[str, str] = {}
        self._owners: dict[str, str] = {}

    def copied(self) -> Names:
        """Return names that continue the numbers, for a step that an optimisation adds."""
        made = Names()
        made._next, made.generated = self._next, dict(self.generated)
        return made

    def step(self, prefix: str, given: str | None = None) -> str:
        """Return the name of a step: `given`, or the prefix with the next number, which is used up in either case."""
        number, self._next = self._next, self._next + 1
        return f"{prefix}{number:010d}" if given is None else checked(given)

    def unless_given(self, given: str | None, prefix: str) -> str:
        """Return `given`, or the prefix with the next number, which is used up only then: a few verbs are like that."""
        return self.step(prefix) if given is None else checked(given)

    def suffixed(self, given: str | None, suffix: str, prefix: str) -> str:
        """Return the name of a step that a verb makes beside its main one: `given` with a suffix, or a numbered one."""
        numbered = self.step(prefix)
        return numbered if given is None else checked(given + suffix)

    def store(self, prefix: str, how: str) -> str:
        """Return the next numbered name of a store. `how` says what to write to choose a name."""
        name = f"{prefix}STATE-STORE-{self._next:010d}"
        self._next += 1
        self.generated[name] = how
        return name

    def own_store(self, name: str, verb: str) -> str:
        """Return the name of a verb's store, which no other verb has then. Raises TopologyError if one has it."""
        if name in self._owners:
            raise TopologyError(
                f"{verb}: store {name!r} is that of an earlier {self._owners[name]}; two verbs that write to one store "
                "would overwrite each other's rows: choose another name. Processors may share it: "
                f"process(..., stores=[{name!r}])"
            )
        self._owners[name] = verb
        return name


def checked(name: str) -> str:
    """Return a name that may be part of a topic's name. Raises TopologyError for another."""
    if not is_topic_name(name):
        raise TopologyError(f"name={name!r}: expected 1 to 249 letters, digits, '.', '_' or '-'")
    return name


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Of an object that is shown as Python does by default: an equal one has another address."""


def is_same_key(one: Any, other: Any) -> bool:
    """Return whether two keys are equal and written alike, as far as Python shows.

    1 and True, 1.5 and 1.50 as Decimal, and datetimes of one instant in two zones are equal for Python, and have other
    bytes: they are other keys of stores, in other partitions.

    >>> is_same_key(("x", 1), ("x", 1)), is_same_key(("x", 1), ("x", True))
    (True, False)
    """
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    return _shown(one) == _shown(other)


def _shown(key: Any) -> str:
    if isinstance(key, tuple):
        return f"{type(key).__qualname__}({', '.join(map(_shown, key))})"
    if isinstance(key, (set, frozenset)):  # equal ones have other orders
        return f"{type(key).__qualname__}({', '.join(sorted(map(_shown, key)))})"
    return _ADDRESS.sub("", repr(key))
