"""TablePrinter: prints records as the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock import ProcessorContext, Record, Windowed
from penstock.operator import Operator, Run

from .columns import columns_of, time_text

_WIDEST = 60
"""So many characters of a cell are shown."""


class TablePrinter(Operator):
    """Prints each record to the standard output of the process that runs the task: key, columns of the value, time.

    The header comes first, and again when a value has a new column. Columns get wider when a cell needs it.
    """

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def bind(self, context: ProcessorContext) -> Run:
        def run(record: Record) -> None:
            print(self._rows(*record[:3]), flush=True)

        return run

    def _rows(self, key: Any, value: Any, timestamp: int) -> str:
        """Return the row of a record, below the header if that is due."""
        # A deletion has no columns of its own.
        columns = {} if value is None and len(self._widths) > 2 else columns_of(value)
        names = dict.fromkeys(["key", *(f"value.{each}" for each in columns), "timestamp"])
        cells = {f"value.{name}": each for name, each in columns.items()}
        if isinstance(key, Windowed):
            key = f"{key.key}@{key.start}/{key.end}"
        cells |= {"key": key, "timestamp": time_text(timestamp)}
        lines = []
        if not names.keys() <= self._widths.keys():
            known = [name for name in self._widths if name not in ("key", "timestamp")]
            new = [name for name in names if name.startswith("value.") and name not in known]
            self._widths = {
                name: max(self._widths.get(name, 0), len(name.removeprefix("value.")))
                for name in ("key", *known, *new, "timestamp")
            }
            self._widen(cells)
            lines.append(self._line([name.removeprefix("value.") for name in self._widths]))
            lines.append("-+-".join("-" * width for width in self._widths.values()))
        self._widen(cells)
        lines.append(self._line([cells.get(name) for name in self._widths]))
        return "\n".join(lines)

    def _widen(self, cells: Mapping[str, Any]) -> None:
        for name, cell in cells.items():
            self._widths[name] = max(self._widths[name], len(_text(cell)))

    def _line(self, cells: Sequence[Any]) -> str:
        padded = (
            _text(cell).rjust(width) if isinstance(cell, (int, float)) else _text(cell).ljust(width)
            for cell, width in zip(cells, self._widths.values(), strict=True)
        )
        return " | ".join(padded).rstrip()


def _text(cell: Any) -> str:
    text = "-" if cell is None else str(cell).replace("\n", " ")
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
