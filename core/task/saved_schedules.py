"""SavedSchedules: the schedules of the last commit, kept until `init` schedules the same callbacks again."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from ..clock import PunctuationType
from ..program.nodes import ProcessorNode, Subtopology
from .schedule import describe_callback, read_times

_log = logging.getLogger("penstock.task")

Texts = dict[str, dict[str, list[str | None]]]
"""By node and key, the saved texts of schedules: those from `init` first, None for a cancelled one."""

SavedNames = Mapping[str, tuple[str, ...]]
"""By node, the names under which its saved data is found; the first one is written. See `Topology.save_as`."""


def saved_names(subtopology: Subtopology) -> SavedNames:
    """Return the names of nodes that have any beside their own."""
    return {node.name: node.saved_as for node in subtopology.nodes if isinstance(node, ProcessorNode) and node.saved_as}


def left_schedules(engine_state: bytes, subtopology: Subtopology) -> set[str]:
    """Return the names under which a commit has schedules that no node of a sub-topology takes over."""
    saved = SavedSchedules(json.loads(engine_state), saved_names(subtopology))
    for node in subtopology.nodes:
        saved.begin(node.name)
    return {node for node, keys in saved._saved.items() if any(any(texts) for texts in keys.values())}


def are_called(engine_state: bytes, driver_ms: int) -> bool:
    """Return whether a task with this `engine_state` has called all wall-clock schedules due at a time (ms).

    And whether it has the results of all calls for records that came up to then.

    The time is by the driver's clock. The task's clock is ahead of it where the driver's was set back.
    """
    saved: Mapping[str, Any] = json.loads(engine_state) if engine_state else {}
    wall_clock_ms = driver_ms
    if "driver" in saved:
        wall_clock_ms = max(driver_ms, saved["wall"] + (driver_ms - saved["driver"]) // 2)
    if saved.get("calls", wall_clock_ms + 1) <= wall_clock_ms:
        return False
    texts = [text for keys in saved.get("timers", {}).values() for of_key in keys.values() for text in of_key]
    times = [read_times(text.partition("/")[0]) for text in texts if text is not None]
    return all(due > wall_clock_ms for kind, due in times if kind is PunctuationType.WALL_CLOCK_TIME)


class SavedSchedules:
    """Takes the `engine_state` of the last commit, and the names of nodes in it.

    Schedules of nodes that the program no longer has are saved again with each commit.
    """

    def __init__(self, saved: Mapping[str, Any], names: SavedNames) -> None:
        self._names = names
        self._aliases: Mapping[str, str] = saved.get("names", {})
        self._saved: Texts = {
            node: {key: list(texts) for key, texts in keys.items()} for node, keys in saved.get("timers", {}).items()
        }
        self._claims: dict[str, deque[str | None]] = {}
        self._kept: dict[str, dict[str, list[str]]] = {}

    def name(self, node: str) -> str:
        """Return the name under which the schedules of a node are saved."""
        return self._names[node][0] if node in self._names else node

    def state(self, texts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the texts of all schedules as a part of the engine state.

        With the second names of nodes, for a program that has only these.
        """
        names = {each[1]: each[0] for each in self._names.values() if len(each) > 1 and each[0] in texts}
        return {**({"timers": texts} if texts else {}), **({"names": names} if names else {})}

    def begin(self, node: str) -> None:
        """Set the node of the following calls of `claim`."""
        names = [*self._names.get(node, ()), node]
        names += [self._aliases[name] for name in names if name in self._aliases]
        found = next((name for name in names if name in self._saved), node)
        self._claims = {key: deque(texts) for key, texts in self._saved.pop(found, {}).items()}

    def claim(self, key: str, kind: PunctuationType) -> tuple[bool, str | None]:
        """Take the next saved schedule of this key. Return whether there is one, and its text (None: cancelled).

        `init` calls this once for each schedule that it makes.
        """
        texts = self._claims.get(key)
        if not texts:
            return False, None
        text = texts.popleft()
        # With another clock it is another schedule.
        return (
            (False, None) if text is not None and "/" not in text and read_times(text)[0] is not kind else (True, text)
        )

    def end(self, node: str) -> Iterator[tuple[str, str]]:
        """Yield key and text of schedules that were made after the node's `init`, and not again by it."""
        claims, self._claims = self._claims, {}
        for key, texts in claims.items():
            for text in filter(None, texts):
                if "/" in text:
                    yield key, text
                else:
                    _log.info("node %r: its init no longer makes a schedule that was saved: it ends", node)

    def end_all(self) -> None:
        """Keep the schedules of nodes that are gone, for a program that has these nodes again."""
        for node, keys in self._saved.items():
            for key, texts in keys.items():
                for text in texts:
                    if text is not None and "/" in text:
                        self.keep(node, key, text)
        self._saved = {}

    def keep(self, node: str, key: str, text: str) -> None:
        """Keep a schedule whose callback is gone."""
        self._kept.setdefault(self.name(node), {}).setdefault(key, []).append(text)
        _log.warning(
            "node %r: the program no longer has %s, which a schedule of every %s ms that was saved calls. It does not "
            "fire, and is kept: put the callback back under that name, and it goes on",
            node, describe_callback(key, text), text.split("/")[1],
        )  # fmt: skip

    def forget(self, node: str, key: str) -> None:
        """Forget the saved schedules of a name that a new schedule takes."""
        self._kept.get(self.name(node), {}).pop(key, None)

    def add_to(self, data: Texts) -> None:
        """Add the unclaimed schedules to a commit's data."""
        for node, keys in self._kept.items():
            for key, texts in keys.items():
                data.setdefault(node, {}).setdefault(key, []).extend(texts)
