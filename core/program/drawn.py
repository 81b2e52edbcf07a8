"""Drawn: base class of objects with a program. Shows it as text, and in a notebook as a drawing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ..errors import PenstockError
from .program import Program


class Drawn(ABC):
    """A program under construction; in a notebook it is shown as `Program` is."""

    def __repr__(self) -> str:
        name = type(self).__name__
        try:
            return repr(self._program_to_draw()).replace("Program", name, 1)
        except PenstockError as error:
            return f"<{name}, which is not complete: {error}>"

    def describe(self) -> str:
        """Return the program as text, as Kafka Streams' `Topology.describe()` prints it; see `Program.describe`.

        Raises TopologyError for a program that is not complete.
        """
        return self._program_to_draw().describe()

    @abstractmethod
    def _program_to_draw(self) -> Program:
        """Return the program as built so far. Raises PenstockError if it is incomplete."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        try:
            program = self._program_to_draw()
        except PenstockError as error:
            return {"text/plain": f"{type(self).__name__}, which is not complete: {error}"}
        return program._repr_mimebundle_(include, exclude)
