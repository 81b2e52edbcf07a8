"""`python -m bench.figures RESULTS... PAGE`: write the page of figures from what `python -m bench --json` measured.

Cases that ran beside Java Kafka Streams come first, then those beside Spark's own operators; PAGE's text is kept up to
the line that marks the figures. The chart stands beside PAGE, with the ending `.svg`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from penstock.compiled import status
from penstock.plugins.logs.kafka import columns  # noqa: F401  its part is in the status

from .latency import OURS, THEIRS
from .latency_chart import COLOURS
from .peer import PEER, STREAMS_VERSION

MARK = "<!-- figures: written by `make figures` -->"
CASES = {
    "kafka-count": "count by key",
    "kafka-filter-map": "filter and map",
    "kafka-word-count": "word count (sentences)",
    "kafka-windowed-count": "windowed count",
    "kafka-dsl-word-count": "word count, DSL (sentences)",
    "kafka-dsl-windowed-count": "windowed count, DSL",
    "kafka-stream-table-join": "stream-table join, DSL",
    "kafka-stream-stream-join": "stream-stream join, DSL",
}
PACKAGES = ("confluent-kafka", "pyspark", "pyarrow", "lmdb", "msgpack")
WIDTH, ROW, LEFT, SCALE = 720, 34, 210, 400
"""Of the chart, in units of its view box; SCALE is the length of the longest bar."""
_CPU = "CPU µs a record, with start"


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables, in Markdown. Raises ValueError where no row has a figure of this page."""
    cases = {row["name"]: row for row in rows if row.get("name") in CASES}
    operators = [row for row in rows if row.get("name") == "dataframe-operators"]
    starts = [row for row in rows if row.get("name") == "startup"]
    if not (cases or operators or starts):
        raise ValueError(f"no figures: expected rows of {', '.join(CASES)}, dataframe-operators or startup")
    tables = (
        _table(
            ("exactly once, Kafka to Kafka", "records/s", PEER, "times", "pairs", "with start", _CPU, "Java's"),
            [_beside_java(cases[name]) for name in CASES if name in cases],
        ),
        _table(
            ("count by key over a DataFrame", "records/s", "`transform` has, times"),
            [(row["operator"], f"{row['records_per_s']:,.0f}", f"{row['ratio']:.1f}") for row in operators],
        ),
        _table(
            ("start on Spark, seconds", "`penstock run`", "Spark's smallest query", "times"),
            [
                (row["what"], f"{row['penstock run']:.1f}", f"{row['Spark']:.1f}", f"{row['ratio']:.2f}")
                for row in starts
            ],
        ),
    )
    return "\n\n".join([_machine(), *filter(None, tables)]) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; "" without rows."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else ""


def _beside_java(row: Mapping[str, Any]) -> Sequence[str]:
    notes = row["notes"]
    return (
        CASES[row["name"]],
        f"{row['records_per_s']:,.0f}",
        f"{notes['peer records/s']:,.0f}",
        f"**{row['ratio']:.1f}**",
        notes["ratios"],
        notes["records/s with start-up"].replace("peer", "Java"),
        f"{row['cpu_s_per_million']:.1f}",
        f"{notes['peer CPU s per million']:.1f}",
    )


def _machine() -> str:
    versions = ", ".join(f"{each} {version(each)}" for each in PACKAGES)
    optimised = "with" if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "") else "without"
    parts = ", ".join(f"{part}: {state}" for part, state in status().items())
    text = (
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores ({_processor()}), {platform.system()}, "
        f"Python {platform.python_version()} {optimised} profile-guided optimisation, {_java()}, Kafka Streams "
        f"{STREAMS_VERSION}, {versions}; compiled parts ({parts})."
    )
    return textwrap.fill(text, 120)


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()


def _java() -> str:
    asked = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'"([^"]+)"', asked.stderr)
    return f"Java {found[1]}" if found else "no Java"


def chart(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG with a bar for each side of each case that ran beside Java; "" if none did."""
    found = [row for name in CASES for row in rows if row.get("name") == name]
    if not found:
        return ""
    longest = max(rate for row in found for rate in _rates(row))
    height = ROW * len(found) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<rect x="{LEFT}" y="10" width="12" height="12" fill="{COLOURS[OURS]}"/>',
        f'<text x="{LEFT + 18}" y="20">penstock</text>',
        f'<rect x="{LEFT + 110}" y="10" width="12" height="12" fill="{COLOURS[THEIRS]}"/>',
        f'<text x="{LEFT + 128}" y="20">{PEER} (records a second)</text>',
    ]
    for number, row in enumerate(found):
        y = 34 + ROW * number
        lines.append(f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{CASES[row["name"]]}</text>')
        for place, (rate, side) in enumerate(zip(_rates(row), (OURS, THEIRS), strict=True)):
            length = SCALE * rate / longest
            lines.append(
                f'<rect x="{LEFT}" y="{y + 13 * place}" width="{length:.1f}" height="12" fill="{COLOURS[side]}"/>'
            )
            lines.append(
                f'<text x="{LEFT + length + 6:.1f}" y="{y + 10 + 13 * place}" font-size="10">{rate:,.0f}</text>'
            )
    return "\n".join([*lines, "</svg>", ""])


def _rates(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["records_per_s"], row["notes"]["peer records/s"]


def main(arguments: Sequence[str]) -> int:
    """Write the page and its chart."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    *files, target = map(Path, arguments)
    rows = [row for each in files for row in json.loads(each.read_text())]
    kept, mark, _ = target.read_text().partition(MARK)
    if not mark:
        print(f"{target} has no line {MARK!r}, behind which the figures go", file=sys.stderr)
        return 2
    target.write_text(f"{kept}{MARK}\n\n{page(rows)}")
    if drawn := chart(rows):
        target.with_suffix(".svg").write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
