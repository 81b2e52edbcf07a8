"""The result of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "max": 100.0}


def percentiles_ms(milliseconds: Sequence[float]) -> dict[str, float | None]:
    """Return the fields of a measured latency, `p50_ms` to `max_ms`; None where nothing was measured."""
    if not milliseconds:
        return {f"{name}_ms": None for name in PERCENTILES}
    found = np.percentile(milliseconds, list(PERCENTILES.values()))
    return {f"{name}_ms": round(float(each), 2) for name, each in zip(PERCENTILES, found, strict=True)}


@dataclass
class Result:
    """One measurement. `phases` are seconds by phase, of the steady part, summed over processes.

    `peer` and `ratio` (median of paired runs, ours over theirs) are set where a peer ran beside it.
    """

    name: str
    records_per_s: float
    cpu_s_per_million: float
    peak_mb: float
    phases: dict[str, float] = field(default_factory=dict)
    peer: str | None = None
    ratio: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    failed = ""

    def as_json(self) -> dict[str, Any]:
        """Return the fields for a JSON file."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the objects for a JSON file: one."""
        return [self.as_json()]

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.records_per_s:,.0f} records/s, {self.cpu_s_per_million:.2f} CPU s per million "
            f"records, peak {self.peak_mb:,.0f} MB"
        ]
        total = sum(self.phases.values()) or 1.0
        lines += [f"  {phase:<10} {seconds:8.3f} s {seconds / total:6.1%}" for phase, seconds in self.phases.items()]
        lines += [f"  {note}: {value}" for note, value in self.notes.items()]
        if self.ratio is not None:
            lines.append(f"  {self.ratio:.2f} times {self.peer}")
        return "\n".join(lines)


@dataclass
class Table:
    """Measurements of one kind, a row each: rows are objects of a JSON file. `failed` names what was not as it should
    be."""

    name: str
    rows: list[dict[str, Any]]
    failed: str = ""

    def __str__(self) -> str:
        columns = [each for each in self.rows[0] if each != "name"] if self.rows else []
        lines = [columns, *([_text(row.get(each)) for each in columns] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join(
            "  " + "  ".join(each.rjust(width) for each, width in zip(line, widths, strict=True)) for line in lines
        )
        return f"{self.name}:\n{text}" + (f"\n  FAILED: {self.failed}" if self.failed else "")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items()) or "-"
    return "-" if value is None else str(value)
