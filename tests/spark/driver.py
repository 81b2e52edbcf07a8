"""A driver in a process of its own: `python -m tests.spark.driver DATA_DIR TOPOLOGY TRIGGER [OPTION=VALUE]...`.

TOPOLOGY is an expression over tests.spark.apps, e.g. "count()". Options: `master`, `path` and `module` (where else to
find TOPOLOGY), `log`, `lease` (seconds after which a lease that is not renewed ends), and Spark's own. Prints the run's
summary as JSON.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from dataclasses import asdict
from typing import Any

from penstock import Application
from penstock.plugins.runtime.application import lease
from penstock.plugins.spark import run
from penstock.plugins.spark.session import make_session


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
    application = Application("app", eval(topology, vars(module)), data_dir=directory, log=log)
    if options:
        session = make_session(master, options)
        summary = run(application, trigger, session=session)
        session.stop()
    else:
        summary = run(application, trigger, master=master)
    print(json.dumps(asdict(summary)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
