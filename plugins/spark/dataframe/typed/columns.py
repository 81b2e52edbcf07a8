"""Column: values of one Spark type as Arrow arrays and as Python values, in both directions."""

from __future__ import annotations

import json
import reprlib
from abc import ABC, abstractmethod
from typing import Any


class Unfit(Exception):
    """A value that does not fit its type. `path`: the field, from the outermost; `said`: what was expected and found.

    `advice`: what to do.
    """

    def __init__(self, said: str, advice: str, path: str = "") -> None:
        super().__init__(said)
        self.said = said
        self.advice = advice
        self.path = path

    def below(self, step: str) -> Unfit:
        """Return this error as that of the type around: `step` is a field's name, or an index in brackets."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        return Unfit(self.said, self.advice, f"{step}{dot}{self.path}")


class Column(ABC):
    """The values of one Spark type, which `name` is. Picklable, and usable without Spark.

    An array is an Arrow array of the type that Spark sends (`arrow`), which may be a slice. None is null.
    """

    name: str

    @abstractmethod
    def arrow(self) -> Any:
        """Return the Arrow type."""

    @abstractmethod
    def read(self, array: Any) -> list[Any]:
        """Return an array's values. Raises Unfit for one that Python's type cannot hold."""

    def text(self, array: Any) -> list[Any]:
        """Return an array's values as what JSON has, different ones for different values. Raises nothing."""
        return self.read(array)

    @abstractmethod
    def plain(self, value: Any) -> Any:
        """Return a copy of a value, not None, as pyarrow takes it. Raises Unfit for one that does not fit."""

    def texts(self, array: Any) -> list[bytes | None]:
        """Return JSON of each value in UTF-8, with Spark's null for null: None."""
        dumps = json.JSONEncoder(separators=(",", ":")).encode
        found = zip(self.text(array), array.is_valid().to_pylist(), strict=True)
        return [dumps(value).encode() if valid else None for value, valid in found]

    def unfit(self, expected: str, value: object, advice: str = "") -> Unfit:
        """Return the error for a value that is to be written."""
        said = f"expected {expected} for the type {self.name}, found {type(value).__name__} {reprlib.repr(value)}"
        return Unfit(said, advice or "convert it, or change the schema")


def of_part(part: Column, nullable: bool, value: Any) -> Any:
    """Return an element or field as pyarrow takes it; None only where the schema says that it may be null."""
    if value is not None:
        return part.plain(value)
    if not nullable:
        raise Unfit(f"expected a value of the type {part.name}, found None", "set it, or leave out NOT NULL")
    return None
