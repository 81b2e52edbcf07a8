"""A driver in a process of its own: `python -m tests.spark.driver DATA_DIR TOPOLOGY TRIGGER [OPTION=VALUE]...`.

TOPOLOGY is an expression over tests.spark.apps, e.g. "count()"; or one for an application. Options: `master`, `path`
and `module` (where else to find TOPOLOGY), `settings` (of the application, as JSON), `log`, `lease` (seconds after
which a lease that is not renewed ends), `progress` (a file for a line of JSON after each batch), `patience` (seconds
after which a slot that its executor does not run goes to another one), and Spark's own. Prints the run's summary as
JSON.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from dataclasses import asdict
from typing import Any

from penstock import Application
from penstock.plugins.engine.host import claims
from penstock.plugins.engine.program import lease
from penstock.plugins.spark import RunProgress, placement, run
from penstock.plugins.spark.sessions import make_session


def main(directory: str, topology: str, trigger: str, *given: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    options = dict(each.split("=", 1) for each in given)
    master = options.pop("master", "local[2]")
    if "path" in options:
        sys.path.insert(0, options.pop("path"))
    module: Any = importlib.import_module(options.pop("module", "tests.spark.apps"))
    log = options.pop("log", "local:log")
    if "lease" in options:
        lease._TTL_SECONDS = float(options.pop("lease"))
    if "patience" in options:
        claims.WAIT_SECONDS = 1.0
        placement._MOST_SECONDS = float(options.pop("patience"))
    progress = options.pop("progress", None)

    def write(news: RunProgress) -> None:
        if progress is not None and news.reports:
            opened = {report.task_id: report.opened for report in news.reports if report.opened}
            with open(progress, "a") as file:
                file.write(json.dumps({"batches": news.batches, "moves": dict(news.moves), "opened": opened}) + "\n")

    made = eval(topology, vars(module))
    application = made if isinstance(made, Application) else Application("app", made)
    application = application.with_settings(data_dir=directory, log=log, **json.loads(options.pop("settings", "{}")))
    if options:
        session = make_session(master, options)
        summary = run(application, trigger, session=session, on_progress=write)
        session.stop()
    else:
        summary = run(application, trigger, master=master, on_progress=write)
    print(json.dumps(asdict(summary)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
