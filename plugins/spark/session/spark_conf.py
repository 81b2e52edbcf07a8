"""Settings of Spark that a run is given: which are refused, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock import ConfigError

from .sessions import STREAMING, TAKEN_OVER, query_options

_OTHERWISE = {
    "spark.master": "use --master (`master=`)",
    "spark.submit.deployMode": "the driver is this process",
    "spark.pyspark.driver.python": "the driver is this process",
    "spark.remote": "penstock needs a classic session, because its runner watches the query in the driver's JVM",
    "spark.sql.shuffle.partitions": "the number of slots is the setting parallelism (--set parallelism=N)",
}
_OF_THE_CONTEXT = ("spark.sql.streaming.ui.", "spark.sql.streaming.streamingQueryListeners")


def parse_conf(given: Iterable[str]) -> dict[str, str]:
    """Return settings from texts KEY=VALUE, checked; the last of a key counts."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--conf {text!r}: expected KEY=VALUE, such as spark.driver.memory=4g")
        found[key.strip()] = value
    check_conf(found)
    return found


def check_conf(conf: Mapping[str, str]) -> None:
    """Raise ConfigError for keys that are not Spark's, and for those that a run sets itself."""
    for key in conf:
        if not key.startswith("spark."):
            raise ConfigError(
                f"--conf {key}: Spark's settings begin with 'spark.'; a setting of penstock or of Kafka's clients is "
                "given by --set"
            )
        reason = _OTHERWISE.get(key)
        if reason is None and key in query_options(checkpoint_is_local=True):
            reason = "the query of an application needs the value that penstock sets"
        is_for_queries = key.startswith(STREAMING) and not key.startswith(_OF_THE_CONTEXT)
        if reason is None and is_for_queries and key not in TAKEN_OVER:
            reason = "the query of an application has Spark's default, and this session has no other query"
        if reason is not None:
            raise ConfigError(f"--conf {key}: it cannot be changed here: {reason}")
