"""Preloads during Spark's start for its next steps: Python's libraries, and classes of Spark SQL.

A start takes one core: this process waits for the JVM, and the JVM initializes thousands of classes in one thread. What
is loaded here would be loaded a little later; without it everything works, and starts more slowly.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkConf

_CLASSES = (
    "org.apache.spark.sql.internal.SQLConf$",
    "org.apache.spark.sql.catalyst.analysis.FunctionRegistry$",
    "org.apache.spark.sql.catalyst.ScalaReflection$",
    "org.apache.spark.SparkThrowableHelper$",
    "org.apache.spark.sql.catalyst.parser.CatalystSqlParser$",
    "org.apache.spark.sql.util.ArrowUtils$",
)
"""Their initialization loads thousands of others. A SparkContext needs none of these, a query needs all."""

_log = logging.getLogger("penstock.spark")


def start_jvm(conf: SparkConf) -> None:
    """Start Spark's JVM with these settings, as making a SparkContext does; begin to load classes for a session.

    Raises PySparkRuntimeError when it does not start.
    """
    from pyspark import SparkContext

    Thread(target=_import_libraries, name="penstock-imports", daemon=True).start()
    SparkContext._ensure_initialized(conf=conf)
    Thread(target=_load_classes, args=(SparkContext._jvm,), name="penstock-classes", daemon=True).start()


def _import_libraries() -> None:
    # PySpark imports pandas as soon as the JVM has started. An import that fails will fail there, too.
    with suppress(Exception):
        import pandas  # noqa: F401
        import pyspark.sql.functions  # noqa: F401


def _load_classes(jvm: Any) -> None:
    try:
        for name in _CLASSES:
            jvm.java.lang.Class.forName(name)
    except Exception as error:  # another release of Spark, or the JVM has ended
        _log.debug("classes were not loaded ahead: %s", error)
