"""UserStep: a processor or transformer of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.hooks import registry
from penstock.processor import Processor, ValueTransformer
from penstock.program.provided import saved_with
from penstock.support.names import function_name

from ...graph.step import ProcessorStep, Stores
from ...graph.writer import Writer

_OF_NODE = ("timers", "timer_key_serde")
"""Options of the node, and not of its processor."""

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
        supplier = self.supplier
        made = registry().load("processor", supplier) if isinstance(supplier, str) else supplier
        arguments = {name: each for name, each in self.options.items() if name not in _OF_NODE}
        if saved_with(f"processor {self.name!r}", made, arguments) is None:
            # No store has such a name, with a space in it.
            saved = writer.numbered(f"process {self._code[-_LONGEST:]}")
            self.saved_as = (self.name, saved) if self._is_named else (saved,)
        super().write(writer)
