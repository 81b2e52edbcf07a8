"""UserStep: a processor or transformer of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock import Processor, ValueTransformer
from penstock.support.names import function_name, timer_store_name

from ...graph.names import Names
from ...graph.step import ProcessorStep, Stores
from ...graph.writer import Writer

_LONGEST = 60
"""Longest name of code under which schedules are saved: a task's engine state is small."""


class UserStep(ProcessorStep):
    """Writes a processor that runs `code`, a class, a function or the name of an installed one.

    Unless it names a store (`saved_with`) or has a name of its own, the engine saves its schedules under the name of
    `code`, and of several such steps under their numbers: so they stay where they are when a verb in front changes the
    number in the node's name.
    """

    def __init__(
        self,
        name: str,
        supplier: Callable[..., Processor | ValueTransformer] | str,
        options: Mapping[str, Any],
        code: Any,
        *,
        is_named: bool,
        stores: Stores,
        changes_key: bool = False,
        changes_value: bool = False,
    ) -> None:
        super().__init__(name, supplier, options, stores=stores, changes_key=changes_key, changes_value=changes_value)
        self._code = code if isinstance(code, str) else function_name(code)
        self._is_named = is_named

    def write(self, writer: Writer) -> None:
        super().write(writer)
        if not writer.topology.saved_as(self.name):
            # No store has such a name, with a space in it.
            saved = writer.numbered(f"process {self._code[-_LONGEST:]}")
            writer.topology.save_as(self.name, *((self.name,) if self._is_named else ()), saved)


def user_step_name(names: Names, given: str | None, prefix: str, verb: str) -> str:
    """Return the name of a user's step. Where it is numbered, its timers are state with a numbered name, too."""
    node = names.unless_given(given, prefix)
    if given is None:
        names.generated[timer_store_name(node)] = f'{verb}(..., name="NAME")'
    return node
