"""The observed metrics of a query, which Spark's listeners and its progress have: columns of counts, and their sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import ConfigError
from penstock.plugins.engine.host.reports import Observed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OBSERVED = "penstock"
"""The name of the metrics: `lastProgress.observedMetrics["penstock"]`."""
_SUMMED = ("records_in", "records_out", "dropped", "commits", "restored", "lag", "state_rows")
COUNTS_SCHEMA = f"{', '.join(f'{name} long' for name in _SUMMED)}, counters map<string, long>"
COUNTS = "counts"
"""The column of an operator in which a row of counts has them, as JSON; null in its rows of results."""


def counts_row(observed: Observed) -> dict[str, Any]:
    """Return a row of `COUNTS_SCHEMA`."""
    counts = observed.counts
    of_counts = {name: getattr(counts, name) for name in _SUMMED if hasattr(counts, name)}
    return {**of_counts, "lag": observed.lag, "state_rows": observed.state_rows, "counters": observed.counters()}


def sums(within: str = "") -> list[Column]:
    """Return the sums of rows of `COUNTS_SCHEMA`; `within`: the prefix of its columns, such as "counts."."""
    from pyspark.sql import functions as f

    counters = f.aggregate(
        f.collect_list(f"{within}counters"),
        f.create_map().cast("map<string, long>"),
        lambda one, other: f.map_zip_with(
            one, other, lambda _, left, right: f.coalesce(left, f.lit(0)) + f.coalesce(right, f.lit(0))
        ),
    )
    return [*(f.sum(f"{within}{name}").alias(name) for name in _SUMMED), counters.alias("counters")]


def observed(rows: DataFrame) -> DataFrame:
    """Return an operator's rows, whose counts are observed as they pass.

    Raises ConfigError for rows that come from another operator: Spark allows one in a query.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.functions import from_json

    parsed = rows.withColumn(COUNTS, from_json(COUNTS, COUNTS_SCHEMA))
    try:
        return parsed.observe(OBSERVED, *sums(f"{COUNTS}."))
    except AnalysisException as error:
        if error.getCondition() != "DUPLICATED_METRICS_NAME":
            raise
        raise ConfigError(
            "the rows of `sources` come from another transform, or are observed by the name 'penstock': Spark allows "
            "one such operator in a query. Combine the two topologies; or write the rows of the first to a table or a "
            "topic, and read that in a second query"
        ) from error


def without_counts(rows: DataFrame) -> DataFrame:
    """Return an operator's rows of results."""
    from pyspark.sql.functions import col

    return rows.where(col(COUNTS).isNull()).drop(COUNTS)
