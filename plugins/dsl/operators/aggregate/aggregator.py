"""Aggregator: a function that takes a value into an aggregate, with what helps when it is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("penstock.dsl")

Take = Callable[[Any, Any, Any], Any]
"""(key, value, aggregate) -> the next aggregate."""

_LOOKED_AT = 100
_WITH_KEY, _WITHOUT_KEY = (
    f"it is called with {arguments}; in Java an Aggregator gets (key, value, aggregate)"
    for arguments in ("(key, aggregate, value)", "(aggregate, value)")
)


class Aggregator:
    """A user's aggregator, adder, subtractor or reducer: a function of (aggregate, value), or with the key before them.

    `may_delete`: to return None each time is no sign of a mistake. An instance is shared by the tasks of a process, so
    that what looks like a mistake is said once.
    """

    def __init__(self, function: Callable[..., Any], *, with_key: bool = False, may_delete: bool = False) -> None:
        self.function = function
        self._with_key = with_key
        self._may_delete = may_delete
        self._warned = False

    def compile(self, node: str) -> Take:
        """Return the function for one task. An error of the user's function gets a note with the order of arguments."""
        function, count_none = self.function, self._counting(node)
        looks = not self._may_delete

        if self._with_key:

            def take(key: Any, value: Any, aggregate: Any) -> Any:
                nonlocal looks
                try:
                    made = function(key, aggregate, value)
                except Exception as error:
                    error.add_note(_WITH_KEY)
                    raise
                if made is None:
                    looks = looks and count_none()
                else:
                    looks = False
                return made
        else:

            def take(key: Any, value: Any, aggregate: Any) -> Any:
                nonlocal looks
                try:
                    made = function(aggregate, value)
                except Exception as error:
                    error.add_note(_WITHOUT_KEY)
                    raise
                if made is None:
                    looks = looks and count_none()
                else:
                    looks = False
                return made

        return take

    def compile_reducer(self, node: str) -> Take:
        """Return the function for one task, in which the first value is the first aggregate."""
        function, count_none = self.function, self._counting(node)
        looks = not self._may_delete

        def take(key: Any, value: Any, aggregate: Any) -> Any:
            nonlocal looks
            if aggregate is None:
                return value
            try:
                made = function(aggregate, value)
            except Exception as error:
                error.add_note("it is called with (aggregate, value)")
                raise
            if made is None:
                looks = looks and count_none()
            else:
                looks = False
            return made

        return take

    def _counting(self, node: str) -> Callable[[], bool]:
        """Return a function that counts a result of None, and returns whether to go on counting."""
        found = 0

        def count_none() -> bool:
            nonlocal found
            found += 1
            if found < _LOOKED_AT:
                return True
            if not self._warned:
                self._warned = True
                _log.warning(
                    "node %r: the first %d results of its aggregator are None, and None deletes the row, so the table "
                    "stays empty: the aggregator has to return the next aggregate, also if it changes its argument as "
                    "list.append does",
                    node,
                    _LOOKED_AT,
                )
            return False

        return count_none
