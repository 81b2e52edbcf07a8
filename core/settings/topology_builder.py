"""TopologyBuilder: builds a Topology once the settings are known, as StreamsBuilder does."""

from __future__ import annotations

from abc import abstractmethod

from ..program.builder import Topology
from ..program.drawn import Drawn
from ..program.program import Program
from .settings import Settings


class TopologyBuilder(Drawn):
    """Something that an Application takes in place of a Topology: it may build another one for other settings."""

    @abstractmethod
    def build(self, settings: Settings | None = None) -> Topology:
        """Return a new topology. `settings` are those of the application; None: the defaults."""

    def _program_to_draw(self) -> Program:
        return self.build().build()
