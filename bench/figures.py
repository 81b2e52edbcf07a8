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
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from penstock.compiled import status
from penstock.plugins.logs.kafka import columns  # noqa: F401  its part is in the status

from .peer import STREAMS_VERSION

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
OURS, THEIRS = "#0b6e4f", "#c2571a"


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables, in Markdown. Raises ValueError where no row has a figure of this page."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(str(row.get("name")), []).append(row)
    lines = [*_beside_java(by_name), *_beside_spark(by_name), *_start(by_name)]
    if not lines:
        raise ValueError(f"no figures: expected rows of {', '.join(CASES)}, dataframe-operators or startup")
    return "\n".join([*_machine(), "", *lines, ""])


def _machine() -> Iterator[str]:
    versions = ", ".join(f"{each} {version(each)}" for each in PACKAGES)
    optimised = "with" if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "") else "without"
    parts = ", ".join(f"{part}: {state}" for part, state in status().items())
    text = (
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores ({_processor()}), {platform.system()}, "
        f"Python {platform.python_version()} {optimised} profile-guided optimisation, {_java()}, Kafka Streams "
        f"{STREAMS_VERSION}, {versions}; compiled parts ({parts})."
    )
    yield from textwrap.wrap(text, 120)


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


def _beside_java(by_name: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    found = {name: by_name[name][-1] for name in CASES if name in by_name}
    if not found:
        return
    heads = ("exactly once, Kafka to Kafka", "records/s", "Java Kafka Streams", "times", "pairs", "with start")
    yield f"| {' | '.join(heads)} | CPU µs a record, with start | Java's |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, row in found.items():
        notes = row["notes"]
        with_start = notes["records/s with start-up"].replace("peer", "Java")
        yield (
            f"| {CASES[name]} | {row['records_per_s']:,.0f} | {notes['peer records/s']:,.0f} | **{row['ratio']:.1f}** "
            f"| {notes['ratios']} | {with_start} | {row['cpu_s_per_million']:.1f} "
            f"| {notes['peer CPU s per million']:.1f} |"
        )
    yield ""


def _beside_spark(by_name: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    rows = by_name.get("dataframe-operators", ())
    if rows:
        yield "| count by key over a DataFrame | records/s | `transform` has, times |"
        yield "|---|---|---|"
        yield from (f"| {row['operator']} | {row['records_per_s']:,.0f} | {row['ratio']:.1f} |" for row in rows)
        yield ""


def _start(by_name: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    rows = by_name.get("startup", ())
    if rows:
        yield "| start on Spark, seconds | `penstock run` | Spark's smallest query | times |"
        yield "|---|---|---|---|"
        yield from (
            f"| {row['what']} | {row['penstock run']:.1f} | {row['Spark']:.1f} | {row['ratio']:.2f} |" for row in rows
        )
        yield ""


def chart(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG with a bar for each side of each case that ran beside Java; "" if none did."""
    found = [row for name in CASES for row in rows if row.get("name") == name]
    if not found:
        return ""
    longest = max(max(row["records_per_s"], row["notes"]["peer records/s"]) for row in found)
    height = ROW * len(found) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<rect x="{LEFT}" y="10" width="12" height="12" fill="{OURS}"/><text x="{LEFT + 18}" y="20">penstock</text>',
        f'<rect x="{LEFT + 110}" y="10" width="12" height="12" fill="{THEIRS}"/>',
        f'<text x="{LEFT + 128}" y="20">Java Kafka Streams (records a second)</text>',
    ]
    for number, row in enumerate(found):
        y = 34 + ROW * number
        lines.append(f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{CASES[row["name"]]}</text>')
        for place, (rate, colour) in enumerate(
            ((row["records_per_s"], OURS), (row["notes"]["peer records/s"], THEIRS))
        ):
            length = SCALE * rate / longest
            lines.append(f'<rect x="{LEFT}" y="{y + 13 * place}" width="{length:.1f}" height="12" fill="{colour}"/>')
            lines.append(
                f'<text x="{LEFT + length + 6:.1f}" y="{y + 10 + 13 * place}" font-size="10">{rate:,.0f}</text>'
            )
    return "\n".join([*lines, "</svg>", ""])


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
