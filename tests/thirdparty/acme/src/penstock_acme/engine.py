"""AuditedEngine: runs applications on the embedded engine, and writes to a file what each run did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import Application, PluginError
from penstock.plugins.engine.run.embedded import EmbeddedEngine
from penstock.plugins.engine.run.engine import Engine
from penstock.plugins.engine.run.order import RunOrder
from penstock.plugins.engine.run.progress import RunSummary


class AuditedEngine(Engine):
    """The engine `acme.audited`; its option `file` names the file."""

    title = "Acme's engine"
    options = ("file",)

    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        """Run the application, and append a line to the file."""
        if "file" not in options:
            raise PluginError("engine 'acme.audited': expected the option file=PATH")
        summary = EmbeddedEngine().run(application, order)
        with Path(options["file"]).open("a") as file:
            file.write(f"{application.id}: {summary.records_in} in, {summary.records_out} out\n")
        return summary
