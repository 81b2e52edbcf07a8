"""TopologyBuilder: what builds a Topology once the settings are known, such as StreamsBuilder."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..program.builder import Topology
from .settings import Settings


class TopologyBuilder(ABC):
    """Something that an Application takes in place of a Topology: it may build another one for other settings."""

    @abstractmethod
    def build(self, settings: Settings | None = None) -> Topology:
        """Return a new topology. `settings` are those of the application; None: the defaults."""
