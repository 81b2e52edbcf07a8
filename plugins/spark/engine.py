"""SparkEngine: the engine `spark`, the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import Application
from penstock.plugins.engine.run.engine import Engine
from penstock.plugins.engine.run.order import RunOrder

if TYPE_CHECKING:
    from penstock.plugins.engine.run.progress import RunSummary


class SparkEngine(Engine):
    """Runs applications on Spark; its options are those of `penstock.plugins.spark.run`."""

    title = "Spark"
    options = ("session", "master", "conf")

    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        from .runner import run_order

        return run_order(application, order, **options)
