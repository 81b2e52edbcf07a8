"""ToolHost: a process of a simulation beside the application, which does one thing, and waits where others act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from penstock import Application, PenstockError

from .host import Host
from .host_files import HostFiles
from .host_log import HostLog
from .host_world import HostWorld

_TURN_SECONDS = 0.25
"""So long a process waits, in all, before others act."""
_RESTS = 0.05
"""Before how many of its operations others act."""


class ToolHost(Host):
    """A process that does one thing, `act`, which may take several acts. `what` names it in the story.

    At its end it `is_done`, with `error` if it failed, else with what `act` returned in `made`.

    Where it waits, and before some of its operations on log and disk, it rests, and others act until it is woken.
    """

    def __init__(
        self, number: int, application: Application, log: HostLog, world: HostWorld, random: Random, what: str,
        act: Callable[[ToolHost], str],
    ) -> None:  # fmt: skip
        super().__init__(number, application, HostLog(log.shared, self._edge), world)
        self._inner, self._what, self._do = log, what, act
        self._random = random
        files = world.world.files
        assert isinstance(files, HostFiles), f"{self} has the files of a real machine"
        self.own_world = replace(world.world, sleep=self._rest, files=files.preceded(self._rest_sometimes))
        self.is_done = self.rests = False
        self.made = ""
        self.error: PenstockError | None = None
        self._waited = 0.0

    def __str__(self) -> str:
        return f"{self._what} process {self.number}"

    def _rest(self, seconds: float) -> None:
        self.world.world.sleep(seconds)
        self._waited += seconds
        if self._waited >= _TURN_SECONDS:
            self._let_others_act()

    def _edge(self, what: str, call: Callable[[], Any], changes: bool) -> Any:
        self._rest_sometimes()
        return self._inner.do(what, call, changes)

    def _rest_sometimes(self) -> None:
        if not self.is_dead and self._random.random() < _RESTS:
            self._let_others_act()

    def _let_others_act(self) -> None:
        self._waited, self.rests = 0.0, True
        self.freeze()
        self.rests = False

    def work(self) -> int:
        try:
            self.made = self._do(self)
        except PenstockError as error:
            self.error = error
        self.is_done = True
        return 0
