"""Drawn: what a notebook shows as a drawing of its program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ..errors import PenstockError
from .program import Program


class Drawn(ABC):
    """A program under construction; in a notebook it is shown as `Program` is."""

    @abstractmethod
    def _program_to_draw(self) -> Program:
        """Return the program as far as it is there. Raises PenstockError for one that is not complete."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        try:
            program = self._program_to_draw()
        except PenstockError as error:
            return {"text/plain": f"{type(self).__name__}, which is not complete: {error}"}
        return program._repr_mimebundle_(include, exclude)
