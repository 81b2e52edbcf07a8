"""Groups: names that belong together, such as nodes of a sub-topology and topics that are co-partitioned."""

from __future__ import annotations

from collections.abc import Iterable


class Groups:
    """Disjoint sets of names (union-find)."""

    def __init__(self, names: Iterable[str]) -> None:
        self._above = {name: name for name in names}

    def find(self, name: str) -> str:
        """Return the representative of the set that `name` is in."""
        while self._above[name] != name:
            self._above[name] = name = self._above[self._above[name]]
        return name

    def unite(self, one: str, other: str) -> None:
        """Make the sets of two names one."""
        self._above[self.find(one)] = self.find(other)

    def members(self) -> list[list[str]]:
        """Return the sets, by their first name and each in the order in which the names were given."""
        sets: dict[str, list[str]] = {}
        for name in self._above:
            sets.setdefault(self.find(name), []).append(name)
        return list(sets.values())
