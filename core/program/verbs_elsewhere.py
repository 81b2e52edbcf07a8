"""Advice for a verb that a Topology does not have: its name here, or its place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..support.names import did_you_mean
from .drawn import Drawn

_ELSEWHERE = {
    "add_state_store": "add_store(STORE, PROCESSOR), or add_processor(..., stores=[STORE])",
    "connect_processor_and_state_stores": "connect(PROCESSOR, STORE)",
    **{each: f"StreamsBuilder().{each}(...)" for each in ("stream", "table", "global_table")},
}


class TopologyVerbs(Drawn):
    """A Topology, of which an unknown verb is an AttributeError with what to write."""

    if not TYPE_CHECKING:  # A type checker knows the verbs.

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{self._hint(name)}")

    def _hint(self, name: str) -> str:
        if name.startswith("_"):
            return ""
        verb = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        verbs = [each for each in dir(type(self)) if not each.startswith("_")]
        if verb in verbs:
            return f": here it is called {verb}(...)"
        if verb in _ELSEWHERE:
            return f": write {_ELSEWHERE[verb]}"
        question = did_you_mean(verb, verbs)
        return f": {question}" if question else ""
