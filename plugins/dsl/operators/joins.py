"""The kinds of joins, of streams and of tables, the joiner of one, and a table as its side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..graph.step import Flow
from .reading import TableSource


@dataclass(frozen=True)
class JoinKind:
    """Which sides of a join have results without a match. `verb` is for messages."""

    verb: str
    keeps_left: bool = False
    keeps_right: bool = False


INNER, LEFT, OUTER = JoinKind("join"), JoinKind("left_join", True), JoinKind("outer_join", True, True)


@dataclass(frozen=True)
class Joiner:
    """The user's joiner: `function` of (left, right), and with `with_key` of (key, left, right).

    With `with_both_keys`, of (key, row_key, left, right): a stream's key, and the key of a global table's row.
    """

    function: Callable[..., Any]
    with_key: bool
    with_both_keys: bool = False

    def compile(self, *, is_left: bool = True) -> Callable[[Any, Any, Any], Any]:
        """Return a function of the key, the value of this side, left or right, and the other one."""
        function = self.function
        if self.with_key:
            return function if is_left else lambda key, mine, other: function(key, other, mine)
        if is_left:
            return lambda key, mine, other: function(mine, other)
        return lambda key, mine, other: function(other, mine)


@dataclass(frozen=True)
class TableSide:
    """A table that is joined: its flow, and the source of its updates."""

    flow: Flow
    source: TableSource
